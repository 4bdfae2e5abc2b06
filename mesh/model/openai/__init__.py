"""OpenAI's models, and those of every server that speaks its Chat Completions API (extra `[openai]`)."""
