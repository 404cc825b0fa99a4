headrace_fuzz(safetensors_fuzz safetensors_fuzz.cc)
headrace_fuzz(gguf_fuzz gguf_fuzz.cc)
