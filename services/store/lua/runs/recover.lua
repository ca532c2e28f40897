-- Set a run to a checkpoint that Redis has lost.
-- Invariants: steps only go forward. The lost rows of the ledger are written again. Every task below the cursor is in
-- the ledger or in `returned`. No learner and no worker goes on from before (new fencing token, no attempts).
-- A repeated call changes nothing. O(lost rows + open tasks).
-- KEYS run order returned ledger lineages ...
--   further keys are deleted: what is in flight
-- ARGV step checkpoint note rows cursor open starts
--   rows: json([[field, text, ...], ...]). cursor: json({field of `order`: text}). open: json([task, ...]).
--   starts: json([lineage:version, ...])
-- Reply 1, or 0 if Redis has this step or a later one
local committed = tonumber(redis.call('HGET', run, 'committed_step') or '0')
if committed >= tonumber(step) then return 0 end
redis.call('HINCRBY', run, 'fencing_token', 1)
for i = 6, #KEYS do redis.call('DEL', KEYS[i]) end
redis.call('DEL', returned)
redis.call('HSET', run, 'committed_step', step, 'checkpoint', checkpoint, 'step', step,
  'version', step, 'lost_writes', note)
for _, row in ipairs(cjson.decode(rows)) do redis.call('XADD', ledger, '*', unpack(row)) end
for name, value in pairs(cjson.decode(cursor)) do redis.call('HSET', order, name, value) end
for _, task in ipairs(cjson.decode(open)) do return_task(returned, task) end
for _, lineage in ipairs(cjson.decode(starts)) do redis.call('RPUSH', lineages, lineage) end
return 1
