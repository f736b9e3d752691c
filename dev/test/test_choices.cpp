// Covers: evaluation: items of multiple choice as lm-eval and llm.c read them, scores and ties, files that are none
#include <cmath>
#include <ctime>
#include <vector>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/data/choices.h"
#include "llmc/run/evaluation.h"

namespace {

TextCodec byte_codec() { return TextCodec::open("", "", "", ModelConfig::preset("tiny")); }

std::string text_of(const std::vector<int32_t>& tokens, int first, int last) {
  return {tokens.begin() + first, tokens.begin() + last};
}

struct Texts {
  std::string context;
  std::vector<std::string> endings;
};
Texts read_one(const std::string& line, ChoiceFormat format, int T = 1000, const std::string& keys = "") {
  TemporaryFolder folder;
  auto items =
      read_choices(write_file(folder / "one.jsonl", line + "\n"), format, ChoiceKeys::parse(keys), byte_codec());
  CHECK(items.size() == 1);
  const int64_t longest = items[0].longest();
  CHECK(cut_choices(items, "one.jsonl", T) == (longest > T + 1));
  Texts texts;
  for (const auto& e : items[0].endings) {
    texts.context = text_of(e.tokens, 0, e.first);
    texts.endings.push_back(text_of(e.tokens, e.first, int(e.tokens.size())));
  }
  return texts;
}

std::string refusal(const std::string& lines, int T = 1000) {
  TemporaryFolder folder;
  const std::string path = write_file(folder / "c.jsonl", lines);
  return error_of([&] {
    auto items = read_choices(path, ChoiceFormat::lm_eval, ChoiceKeys(), byte_codec());
    cut_choices(items, path, T);
  });
}

constexpr auto kLmEval = ChoiceFormat::lm_eval, kLlmc = ChoiceFormat::llmc;

}  // namespace

TEST_CASE("the line of a held-out loss says how many tokens the unigram was counted in, if that is not all") {
  EvaluationResult result;
  result.loss = HeldOutLoss{1.5, {}};
  CHECK(evaluation_text(result, 256, Unigram{3.25, 0}).ends_with("| unigram 3.2500"));
  CHECK(evaluation_text(result, 256, Unigram{3.25, 9994240}).ends_with("| unigram 3.2500 (counted in 9.99M tokens)"));
}

TEST_CASE("lm-eval's text of HellaSwag's items, and llm.c's") {
  const std::string item =
      R"({"activity_label": "Sailing", "ctx_a": "[header] How to sail [title] Buy a boat.", "ctx_b": "éMILE sAILS",)"
      R"( "ctx": "He sails. ", "endings": [" [step] far  away.", "home\n[a\nb] ."], "label": "1"})";
  const Texts harness = read_one(item, kLmEval);
  CHECK(harness.context == "Sailing: How to sail. Buy a boat. Émile sails");
  CHECK(harness.endings == std::vector<std::string>{"  far away.", " home\n[a\nb] ."});
  const Texts karpathy = read_one(item, kLlmc);
  CHECK(karpathy.context == "He sails. ");
  CHECK(karpathy.endings == std::vector<std::string>{"  [step] far  away.", " home\n[a\nb] ."});
}

TEST_CASE("an item without HellaSwag's own fields: its ctx, whose last spaces belong to the ending") {
  const Texts texts = read_one(R"({"ctx": "Two and two is  ", "endings": ["four", "five"], "label": 0})", kLmEval);
  CHECK(texts.context == "Two and two is");
  CHECK(texts.endings == std::vector<std::string>{"   four", "   five"});
}

TEST_CASE("other names of the keys: in an object, one key for each ending, letters as labels") {
  const auto texts = [](const std::string& line, const std::string& keys) {
    return read_one(line, kLmEval, 1000, keys);
  };
  const Texts arc = texts(R"({"question": "Two?", "choices": {"text": ["a", "b"]}, "answerKey": "B"})",
                          "ctx=question,endings=choices.text,label=answerKey");
  CHECK(arc.context == "Two?");
  CHECK(arc.endings == std::vector<std::string>{" a", " b"});
  CHECK(texts(R"({"goal": "g", "sol1": "x", "sol2": "y", "label": 1})", "ctx=goal,endings=sol1+sol2").endings ==
        std::vector<std::string>{" x", " y"});
  CHECK(texts(R"({"ctx": "c", "a+b.c": ["x", "y"], "label": 0})", "endings=a+b.c").endings[1] == " y");
  says(error_of([&] { texts(R"({"question": "Two?", "choices": ["a", "b"], "answer": 0})", "ctx=question"); }),
       "one.jsonl:1 has no key \"endings\"; it has question, choices, answer", "--eval-keys endings=NAME");
  says(error_of([&] { texts(R"({"goal": "g", "sol1": "x", "label": 0})", "ctx=goal,endings=sol1+sol2"); }),
       "has no key \"sol2\"; it has goal, sol1, label");
  for (const char* wrong : {"ctxt=a", "ctx", "ctx=", "=a", "ctx=a,,label=b"})
    says(error_of([&] { ChoiceKeys::parse(wrong); }), "names no key of a question", "ctx=question,endings=choices");
}

TEST_CASE("what is longer than the model's sequence loses its beginning") {
  const Texts texts = read_one(R"({"ctx": "abcdefgh", "endings": ["xyz", "z"], "label": 0})", kLlmc, 6);
  CHECK(texts.context == "defgh");
  says(refusal("\n{\"ctx\": \"a\", \"endings\": [\"123456\", \"z\"], \"label\": 0}", 6),
       "c.jsonl:2: an ending of 7 tokens");
}

TEST_CASE("scores: by the sum, by characters, by tokens; of equals the first counts") {
  ChoiceItem item{{{{1, 2, 3, 4, 5}, 1, 2}, {{1, 2}, 1, 10}, {{1, 2, 3}, 2, 1}}, 0};
  ChoiceScore score;
  // Sums -4, -3, -3.5: the second; by characters -2, -0.3, -3.5: the second; by tokens -1, -3, -3.5: the first.
  score.add(item, {-4, -3, -3.5f});
  CHECK(score.items == 1);
  CHECK(score.acc == 0);
  CHECK(score.acc_norm == 0);
  CHECK(score.acc_norm_tokens == 1);
  score.add(item, {-3, -3, -3});
  CHECK(score.acc == 1);
  item.gold = 1;
  score.add(item, {-3, -3, -3});
  CHECK(score.items == 3);
  CHECK(score.acc == 1);
  CHECK(score.acc_norm == 1);
}

TEST_CASE("a model of NaN has no score") {
  const ChoiceItem item{{{{1, 2, 3}, 1, 2}, {{1, 2}, 1, 10}}, 0, 7};
  ChoiceScore score;
  for (const float other : {NAN, INFINITY, -INFINITY})
    for (const std::vector<float>& values : {std::vector<float>{other, -1}, {-1, other}, {other, other}}) {
      says(error_of([&] { score.add(item, values); }), "the question in line 7: an ending has the log-likelihood");
      CHECK(score.items == 0);
    }
}

TEST_CASE("a long line takes time and memory in proportion to it") {
  const std::clock_t begin = std::clock();  // of the processor, whatever else runs
  std::string brackets, titles;
  for (int i = 0; i < 150000; ++i) brackets += "[x]y  ", titles += " [title]";
  const auto item = [](const std::string& context, const std::string& endings) {
    return R"({"activity_label": "a", "ctx_b": "b", "ctx": "c", "label": 0, "ctx_a": ")" + context +
           R"(", "endings": [)" + endings + "]}";
  };
  CHECK(read_one(item(brackets, R"("d", "e")"), kLmEval).context.ends_with("y y  B"));
  CHECK(read_one(item(titles, R"("d", "e")"), kLmEval).context.ends_with(". . B"));
  CHECK((std::clock() - begin) / CLOCKS_PER_SEC < 20);
  std::string endings = R"("d")";
  for (int i = 0; i < 10000; ++i) endings += R"(, "e")";
  says(refusal(item(std::string(100000, 'x'), endings)), "10001 endings are 10", "expected at most 4194304");
}

TEST_CASE("a file that is none says where") {
  const std::string good = R"({"ctx": "a", "endings": ["b", "c"], "label": 0})";
  CHECK(refusal(good) == "");
  CHECK(refusal(good + "\n\n" + good + "\n") == "");
  says(refusal(good + "\n" + R"({"ctx": "a", "label": 0})"), "c.jsonl:2 has no key \"endings\"");
  says(refusal(R"({"endings": ["b", "c"], "label": 0})"), "c.jsonl:1 has no key \"ctx\"");
  says(refusal(R"({"ctx": "a", "endings": ["b", "c"]})"), "c.jsonl:1 has no key \"label\"");
  says(refusal(R"({"ctx": "a", "endings": ["b", "c"], "label": 2})"), "label 2, and there are 2 endings",
       "from 0 to 1");
  says(refusal(R"({"ctx": "a", "endings": ["b", "c"], "label": "x"})"), "there are 2 endings");
  says(refusal(R"({"ctx": "a", "endings": ["b"], "label": 0})"), "1 endings, expected at least 2");
  says(refusal(R"({"ctx": "", "endings": ["b", "c"], "label": 0})"), "c.jsonl:1: ");
  says(refusal("{\"ctx\": \"a\", "), "c.jsonl:1");
  says(refusal(""), "has no items");
  says(error_of([] { read_choices("/nowhere.jsonl", kLlmc, ChoiceKeys(), byte_codec()); }), "cannot read the choices");
}

TEST_CASE("a model without a tokenizer is not asked") {
  ModelConfig config = ModelConfig::preset("tiny");
  config.V = 50257;
  const TextCodec numbers = TextCodec::open("", "", "", config);
  says(error_of([&] { read_choices("x", kLlmc, ChoiceKeys(), numbers); }), "the model has no tokenizer here");
  CHECK(numbers.encode("17 50256", true) == std::vector<int32_t>{17, 50256});
  says(error_of([&] { numbers.encode("17 50257", true); }), "\"50257\" is no token's number");
  says(error_of([&] { numbers.encode("a", true); }), "\"a\" is no token's number");
  says(error_of([&] { TextCodec::open("/nowhere", "", "", config); }), "/nowhere");
}
