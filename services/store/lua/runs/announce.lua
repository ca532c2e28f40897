-- Tell the readers of runs that a run was submitted, changed or deleted.
-- The caller calls it after the change: a script may not write keys of two slots.
-- KEYS changes
-- ARGV run
-- Reply the entry's id
also_when_full(changes)
return redis.call('XADD', changes, 'MAXLEN', '~', 10000, '*', 'run', run)
