"""Dataset rows: their content, the order in which a run reads them, and their prompts as text.

Pure, except for the tokenizer. Imports nothing of the run config.
"""
