-- Delete a dataset's record and its name.
-- Invariant: if another dataset has taken over the name meanwhile, the name stays.
-- KEYS datasets dataset_names
-- ARGV id name
-- Reply 1 deleted, 0 there was no such dataset
if redis.call('HGET', dataset_names, ARGV[2]) == ARGV[1] then redis.call('HDEL', dataset_names, ARGV[2]) end
return redis.call('HDEL', datasets, ARGV[1])
