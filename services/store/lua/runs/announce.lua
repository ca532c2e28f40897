-- Tell the readers of runs that a run was submitted, changed or deleted.
-- The caller calls it after the change: a script may not write keys of two slots. A `changes` that is not a stream
-- is replaced.
-- KEYS changes
-- ARGV run
-- Reply the entry's id
also_when_full(changes)
local reply = redis.pcall('XADD', changes, 'MAXLEN', '~', 10000, '*', 'run', run)
if type(reply) == 'table' and string.find(reply.err, 'WRONGTYPE') then
  redis.call('DEL', changes)
  reply = redis.call('XADD', changes, '*', 'run', run)
end
return reply
