"""OpenAI's fine-tuning API, in terms of Headrace."""
