headrace_fuzz(safetensors_fuzz safetensors_fuzz.cc)
headrace_fuzz(gguf_fuzz gguf_fuzz.cc)
headrace_fuzz(torch_fuzz torch_fuzz.cc)
headrace_fuzz(prefix_fuzz prefix_fuzz.cc)
