"""The metrics of runs as columns, for charts: read the newest rows of `metrics.jsonl`, store them
by name, and cut them into buckets. Nothing here writes `metrics.jsonl`."""

from services.series.buckets import Buckets, bucket_width, rounded
from services.series.columns import Numbers, RunColumns, RunSeries, X
