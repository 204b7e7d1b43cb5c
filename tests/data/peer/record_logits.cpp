// The peer's logits at every position of a token list: float32, keys and values in float32, no flash
// attention, one thread, the whole list in one batch.
//
//   record_logits MODEL.gguf 5 17 42 ...   writes tokens x vocabulary float32 to standard output
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

int main(int argc, char** argv) {
  std::vector<llama_token> tokens;
  for (int i = 2; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));

  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model_params model_params = llama_model_default_params();
  llama_model* model = llama_model_load_from_file(argv[1], model_params);
  if (!model) return std::fprintf(stderr, "cannot load %s\n", argv[1]), 1;

  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = 256;
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = GGML_TYPE_F32;
  llama_context* context = llama_init_from_model(model, params);
  if (!context) return std::fprintf(stderr, "cannot make a context for %s\n", argv[1]), 1;

  llama_batch batch = llama_batch_init(int(tokens.size()), 0, 1);
  batch.n_tokens = int(tokens.size());
  for (int i = 0; i < batch.n_tokens; ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = true;
  }
  if (llama_decode(context, batch) != 0) return std::fprintf(stderr, "decode failed\n"), 1;
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (int i = 0; i < batch.n_tokens; ++i)
    std::fwrite(llama_get_logits_ith(context, i), sizeof(float), vocabulary, stdout);
  return 0;
}
