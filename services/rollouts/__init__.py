"""Trained groups on the data volume: Parquet parts, an index of their answers, and readers. Imports
contracts and `services.volume`, never the store.

runs/RUN/rollouts/part-00000012-rank-0000.parquet   answers that rank 0 trained in step 12
runs/RUN/rollouts/index-rank-0000.bin               a record of fixed size for each of its answers
runs/RUN/rollouts/tokens.arrow                      the bytes of each token of the vocabulary

The index is what makes a million answers filter in milliseconds. An answer is in the index only
after its part is complete.
"""
