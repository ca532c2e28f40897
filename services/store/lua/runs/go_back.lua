-- Set a run back to an earlier checkpoint, because each newer one is damaged.
-- Invariants: fenced; each task that was trained after the step is returned, in the same moment in which
-- the ledger says that its training is undone; no plan of a later step stands; this start's lineage began
-- at the step.
-- Repeating it changes nothing. O(tasks undone).
-- KEYS run order returned plans ledger lineages
-- ARGV fencing_token lineage step checkpoint json([task, ...])
-- Reply 1, 0 where the run is at this step or an earlier one, -1 fenced
local run, order, returned, plans, ledger, lineages = unpack(KEYS)
if fenced(run, ARGV[1]) then return -1 end
local step = tonumber(ARGV[3])
if step >= tonumber(redis.call('HGET', run, 'committed_step') or '0') then return 0 end
also_when_full(run)
redis.call('DEL', plans)
for _, task in ipairs(cjson.decode(ARGV[5])) do return_task(returned, task) end
redis.call('XADD', ledger, '*', 'end', 'undone', 'step', step, 'tasks', ARGV[5])
redis.call('HSET', run, 'committed_step', step, 'checkpoint', ARGV[4], 'step', step, 'version', step)
if tonumber(redis.call('HGET', order, 'base_step') or '0') > step then
  redis.call('HSET', order, 'base_step', step)
end
if redis.call('LLEN', lineages) > 0 then redis.call('LSET', lineages, -1, ARGV[2] .. ':' .. step) end
return 1
