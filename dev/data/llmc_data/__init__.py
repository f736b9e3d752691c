"""Text and conversations → shards of tokens.  ../README.md says how it is used and what the files hold."""
