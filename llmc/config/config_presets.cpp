// The published shapes of models, and `tiny`, which reads bytes.
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/config/config.h"

namespace {

struct Preset {
  const char *name, *family;
  int C, L, NH, NKV, HD, FF, V;
  double norm_eps;
  bool tied;
  int max_positions;
  RopeScaling rope;
  int bos, eos, pad = -1;
};

constexpr RopeScaling rope(double theta) { return {theta}; }
constexpr RopeScaling llama3_rope(double factor) { return {500000, RopeType::llama3, factor}; }

// Touvron et al. 2023; Grattafiori et al. 2024; Jiang et al. 2023; Allal et al. 2025 (SmolLM2); Qwen team 2024, 2025;
// OLMo team 2025. Each model's config.json has these values.
constexpr Preset kPresets[] = {
    {"tiny", "llama", 128, 4, 4, 2, 32, 384, 256, 1e-5, false, 2048, rope(1e4), -1, -1},
    {"llama2-7b", "llama", 4096, 32, 32, 32, 128, 11008, 32000, 1e-5, false, 4096, rope(1e4), 1, 2},
    {"llama3-8b", "llama", 4096, 32, 32, 8, 128, 14336, 128256, 1e-5, false, 8192, rope(5e5), 128000, 128001},
    {"llama3-70b", "llama", 8192, 80, 64, 8, 128, 28672, 128256, 1e-5, false, 8192, rope(5e5), 128000, 128001},
    {"llama3.1-8b", "llama", 4096, 32, 32, 8, 128, 14336, 128256, 1e-5, false, 131072, llama3_rope(8), 128000, 128001},
    {"llama3.1-70b", "llama", 8192, 80, 64, 8, 128, 28672, 128256, 1e-5, false, 131072, llama3_rope(8), 128000, 128001},
    {"llama3.1-405b", "llama", 16384, 126, 128, 8, 128, 53248, 128256, 1e-5, false, 131072, llama3_rope(8), 128000,
     128001},
    {"llama3.2-1b", "llama", 2048, 16, 32, 8, 64, 8192, 128256, 1e-5, true, 131072, llama3_rope(32), 128000, 128001},
    {"llama3.2-3b", "llama", 3072, 28, 24, 8, 128, 8192, 128256, 1e-5, true, 131072, llama3_rope(32), 128000, 128001},
    {"smollm2-135m", "llama", 576, 30, 9, 3, 64, 1536, 49152, 1e-5, true, 8192, rope(1e5), 0, 0},
    {"smollm2-360m", "llama", 960, 32, 15, 5, 64, 2560, 49152, 1e-5, true, 8192, rope(1e5), 0, 0},
    {"smollm2-1.7b", "llama", 2048, 24, 32, 32, 64, 8192, 49152, 1e-5, true, 8192, rope(1.3e5), 0, 0},
    {"mistral-7b-v0.3", "mistral", 4096, 32, 32, 8, 128, 14336, 32768, 1e-5, false, 32768, rope(1e6), 1, 2},
    {"qwen2.5-0.5b", "qwen2", 896, 24, 14, 2, 64, 4864, 151936, 1e-6, true, 32768, rope(1e6), 151643, 151643},
    {"qwen2.5-1.5b", "qwen2", 1536, 28, 12, 2, 128, 8960, 151936, 1e-6, true, 131072, rope(1e6), 151643, 151643},
    {"qwen2.5-3b", "qwen2", 2048, 36, 16, 2, 128, 11008, 151936, 1e-6, true, 32768, rope(1e6), 151643, 151643},
    {"qwen2.5-7b", "qwen2", 3584, 28, 28, 4, 128, 18944, 152064, 1e-6, false, 131072, rope(1e6), 151643, 151643},
    {"qwen2.5-14b", "qwen2", 5120, 48, 40, 8, 128, 13824, 152064, 1e-5, false, 131072, rope(1e6), 151643, 151643},
    {"qwen2.5-32b", "qwen2", 5120, 64, 40, 8, 128, 27648, 152064, 1e-5, false, 131072, rope(1e6), 151643, 151643},
    {"qwen2.5-72b", "qwen2", 8192, 80, 64, 8, 128, 29568, 152064, 1e-5, false, 131072, rope(1e6), 151643, 151643},
    {"qwen3-0.6b", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 1e-6, true, 40960, rope(1e6), 151643, 151645},
    {"qwen3-1.7b", "qwen3", 2048, 28, 16, 8, 128, 6144, 151936, 1e-6, true, 40960, rope(1e6), 151643, 151645},
    {"qwen3-4b", "qwen3", 2560, 36, 32, 8, 128, 9728, 151936, 1e-6, true, 40960, rope(1e6), 151643, 151645},
    {"qwen3-8b", "qwen3", 4096, 36, 32, 8, 128, 12288, 151936, 1e-6, false, 40960, rope(1e6), 151643, 151645},
    {"qwen3-14b", "qwen3", 5120, 40, 40, 8, 128, 17408, 151936, 1e-6, false, 40960, rope(1e6), 151643, 151645},
    {"qwen3-32b", "qwen3", 5120, 64, 64, 8, 128, 25600, 151936, 1e-6, false, 40960, rope(1e6), 151643, 151645},
    {"olmo2-1b", "olmo2", 2048, 16, 16, 16, 128, 8192, 100352, 1e-6, false, 4096, rope(5e5), -1, 100257, 100277},
    {"olmo2-7b", "olmo2", 4096, 32, 32, 32, 128, 11008, 100352, 1e-6, false, 4096, rope(5e5), -1, 100257, 100277},
    {"olmo2-13b", "olmo2", 5120, 40, 40, 40, 128, 13824, 100352, 1e-6, false, 4096, rope(5e5), -1, 100257, 100277},
};

}  // namespace

ModelConfig ModelConfig::preset(const std::string& name) {
  for (const Preset& p : kPresets) {
    if (name != p.name) continue;
    ModelConfig config;
    config.name = p.name, config.family = find_family(p.family);
    config.C = p.C, config.L = p.L, config.NH = p.NH, config.NKV = p.NKV, config.HD = p.HD, config.FF = p.FF;
    config.V = p.V, config.norm_eps = p.norm_eps, config.tied = p.tied, config.max_positions = p.max_positions;
    config.rope = p.rope, config.bos = p.bos, config.pad = p.pad;
    if (p.eos >= 0) config.eos = {p.eos};
    return config;
  }
  std::string known;
  for (const Preset& p : kPresets) known += std::string(" ") + p.name;
  const std::string near = nearest(name, presets());
  fail("--model %s is neither a preset nor a file or directory%s%s\n  presets:%s", name.c_str(),
       near.empty() ? "" : "; did you mean ", near.c_str(), known.c_str());
}

std::vector<std::string> ModelConfig::presets() {
  std::vector<std::string> names;
  for (const Preset& p : kPresets) names.push_back(p.name);
  return names;
}
