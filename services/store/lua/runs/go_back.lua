-- Set a run back to an earlier checkpoint, because each newer one is damaged.
-- Invariants: fenced. Each task that was trained after the step is returned, at the moment at which the ledger says
-- that its training is undone. No plan of a later step is left. The lineage of the present learner began at the
-- step. A repeated call changes nothing. O(tasks undone).
-- KEYS run order returned plans ledger lineages
-- ARGV fencing_token lineage step checkpoint tasks
--   tasks: json([task, ...])
-- Reply 1, 0 the run is at this step or an earlier one, -1 fenced
if fenced(run, fencing_token) then return -1 end
if tonumber(step) >= tonumber(redis.call('HGET', run, 'committed_step') or '0') then return 0 end
also_when_full(run)
redis.call('DEL', plans)
for _, task in ipairs(cjson.decode(tasks)) do return_task(returned, task) end
redis.call('XADD', ledger, '*', 'end', 'undone', 'step', step, 'tasks', tasks)
redis.call('HSET', run, 'committed_step', step, 'checkpoint', checkpoint, 'step', step, 'version', step)
if tonumber(redis.call('HGET', order, 'base_step') or '0') > tonumber(step) then
  redis.call('HSET', order, 'base_step', step)
end
if redis.call('LLEN', lineages) > 0 then redis.call('LSET', lineages, -1, lineage .. ':' .. step) end
return 1
