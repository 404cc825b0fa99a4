headrace_fuzz(tokenizer_fuzz tokenizer_fuzz.cc)
