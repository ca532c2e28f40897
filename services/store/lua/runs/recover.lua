-- Set a run to a checkpoint that Redis has lost.
-- Invariants: steps only go forward. The lost rows of the ledger are written again. Every task below the cursor is in
-- the ledger or in `returned`. No learner and no worker goes on from before (new fencing token, no attempts).
-- A repeated call changes nothing. O(lost rows + open tasks).
-- KEYS run order returned ledger lineages ...
--   further keys are deleted: what is in flight
-- ARGV step checkpoint note json([[field, text, ...], ...]) json({order field: text})
--      json([open task, ...]) json([lineage:version, ...])
-- Reply 1, or 0 if Redis has this step or a later one
local committed = tonumber(redis.call('HGET', run, 'committed_step') or '0')
if committed >= tonumber(ARGV[1]) then return 0 end
redis.call('HINCRBY', run, 'fencing_token', 1)
for i = 6, #KEYS do redis.call('DEL', KEYS[i]) end
redis.call('DEL', returned)
redis.call('HSET', run, 'committed_step', ARGV[1], 'checkpoint', ARGV[2], 'step', ARGV[1],
  'version', ARGV[1], 'lost_writes', ARGV[3])
for _, row in ipairs(cjson.decode(ARGV[4])) do redis.call('XADD', ledger, '*', unpack(row)) end
for name, value in pairs(cjson.decode(ARGV[5])) do redis.call('HSET', order, name, value) end
for _, task in ipairs(cjson.decode(ARGV[6])) do return_task(returned, task) end
for _, lineage in ipairs(cjson.decode(ARGV[7])) do redis.call('RPUSH', lineages, lineage) end
return 1
