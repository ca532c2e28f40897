-- Make a durable checkpoint the run's current one, and end the tasks that it was trained on.
-- Invariants: fenced. Steps only go forward (go_back.lua sets a run back). A group is acknowledged, deleted and
-- written to the ledger at the same moment, and only when a checkpoint contains its training. All steps that a
-- checkpoint of an RL run covers are planned, or nothing changes. With a curriculum, the pass rates of the trained
-- rows change at the same moment.
-- The ledger keeps the version of each task's oldest token and the lineage of its plan, so staleness can be
-- computed from the ledger alone.
-- O(groups acknowledged).
-- KEYS run plans groups blobs bytes ledger tries pass_rates
-- ARGV fencing_token lineage step directory
-- Reply the number of groups acknowledged, -1 fenced, or -1 - s if step s was never planned
if fenced(run, fencing_token) then return -1 end
step = tonumber(step)
local r = hash_fields(run, 'kind', 'committed_step')
local committed = tonumber(r.committed_step or '0')
if step < committed then return 0 end
if r.kind == 'rl' then
  for s = committed + 1, step do
    if redis.call('HEXISTS', plans, s) == 0 then return -1 - s end
  end
end
-- The commit frees more than it writes.
also_when_full(run)
local acknowledged = 0
for s = committed + 1, r.kind == 'rl' and step or committed do
  local plan = cjson.decode(redis.call('HGET', plans, s))
  local tasks, oldest = {}, {}
  for i, pair in ipairs(plan.pairs) do
    local id, task = unpack(pair)
    local entry = redis.call('XRANGE', groups, id, id)[1]
    tasks[i], oldest[i] = task, ''
    if entry then
      local group = entry_fields(entry)
      oldest[i] = group.lineage .. ':' .. group.min_version
      note_passed(pass_rates, group.row, group.passed)
      remove_group(groups, blobs, bytes, id, task)
    end
    redis.call('HDEL', tries, position_of(task))
  end
  redis.call('XADD', ledger, '*', 'end', 'trained', 'step', s, 'lineage', lineage,
    'planned', plan.lineage, 'tasks', cjson.encode(tasks), 'oldest', cjson.encode(oldest))
  redis.call('HDEL', plans, s)
  acknowledged = acknowledged + #tasks
end
redis.call('HSET', run, 'committed_step', step, 'checkpoint', directory)
return acknowledged
