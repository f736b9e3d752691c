#!/usr/bin/env bash
# Covers: dev/data/debian_text makes plain text of HTML, POD and packed text: without menus, scripts, repeated paragraphs and
# listings; the same packages give the same bytes
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
mkdir "$scratch/src" && cd "$scratch/src" # a name that is left out, but only within a package
debian_text=$root/dev/data/debian_text
sentence() { printf 'The %s sentence says in plain words what the program does with its input, and why.' "$1"; }
many() { for i in $(seq "$2"); do printf '%s%s%s\n' "$3" "$(sentence "$1 $i")" "$4"; done; }

html=text.packages/git-doc/usr/share/doc/git-doc
mkdir -p $html
{
  echo '<html><head><title>A page</title><style>p { margin: 0 }</style></head><body class="nav-open"><nav><p>'
  sentence menu
  echo '</p></nav><div class="sphinxsidebar"><div><p>' && sentence sidebar
  echo '</p></div></div><script>if (a < b) run();</script>'
  echo '<h1>Heads<a class="headerlink" href="#h">¶</a></h1>'
  many first 8 '<p>' '</p>'
  printf '<p>Entities &lt;a&gt; &amp;\n  broken   lines.</p><pre>\nkeep  this\n  as it is\n</pre></body></html>\n'
} >$html/a.html
{ echo '<p>' && sentence 'first 3' && echo '</p>' && many second 8 '<p>' '</p>'; } >$html/b.html
for i in $(seq 300); do echo "<p>FUNCTION_$i(ARGUMENT_$i, FLAGS_$i)</p>"; done >$html/listing.html
pod=text.packages/perl-doc/usr/share/perl/5.36.0/pod
mkdir -p $pod
{
  printf '=head1 NAME\n\nB<bold> and C<< $a->{b} >> and L<a page|perlre>, F<I<nested> name>, E<gt>X<index>\n\n'
  printf '=over 4\n\n=item one\n\n=cut\n\n' && many pod 8 '' $'\n'
} >$pod/perlx.pod
mkdir $html/src && many source 8 '<p>' '</p>' >$html/src/c.html
mkdir -p text.packages/jargon-text/usr/share/doc/jargon-text
many packed 8 '' $'\n' | gzip >text.packages/jargon-text/usr/share/doc/jargon-text/jargon.txt.gz

"$debian_text" --out "$PWD/text" git-doc perl-doc jargon-text >said.txt
cat said.txt
texts() {
  python3 -c 'import json, sys
for line in open(sys.argv[1]): print(json.loads(line)["text"], end="=====\n")' "text/$1.jsonl"
}
texts git-doc >git.txt
texts perl-doc >perl.txt
check "two pages, no listing, none of a folder src" [ "$(grep -c ===== git.txt)" = 2 ]
check "no menus, scripts, styles, titles, marks" not grep -qE 'menu|sidebar|run\(\)|margin|A page|¶|FUNCTION' git.txt
check "a repeated paragraph stands once" [ "$(grep -c 'The first 3 sentence' git.txt)" = 1 ]
check "entities and broken lines" grep -qx 'Entities <a> & broken lines.' git.txt
check "preformatted text keeps its lines" grep -qx '  as it is' git.txt
check "headings" grep -qx 'Heads' git.txt
check "POD" grep -qx 'bold and $a->{b} and a page, nested name, >' perl.txt
check "  without commands" not grep -q '^=[a-z]' perl.txt
check "packed text" grep -q 'The packed 8 sentence' text/jargon-text.jsonl
check "what it says" grep -qE '^git-doc +\? +2 +[0-9,]+ +GPL-2$' said.txt
sha256sum text/*.jsonl >before.txt
"$debian_text" --out text git-doc perl-doc jargon-text >/dev/null
check "again: the same bytes" sha256sum --quiet -c before.txt
"$debian_text" --out elsewhere --packages text.packages git-doc >/dev/null
check "packages of another folder" cmp elsewhere/git-doc.jsonl text/git-doc.jsonl
python=$(python3 -c 'import sys; print(sys.executable)')
refused "a machine without apt-get" "this needs Debian or Ubuntu" env PATH=/nowhere "$python" "$debian_text" --out text zsh-doc
refused "an unknown package" "nothing-doc: expected packages of this list" "$debian_text" --out text nothing-doc
echo "$checks checks passed"
