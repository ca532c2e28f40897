"""Routes of OpenAI's fine-tuning API."""
