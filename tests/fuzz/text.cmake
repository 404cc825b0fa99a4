headrace_fuzz(tokenizer_fuzz tokenizer_fuzz.cc)
headrace_fuzz(jinja_fuzz jinja_fuzz.cc)
