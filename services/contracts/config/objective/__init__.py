"""The objective of a run: its terms, and the models that it compares the policy with."""
