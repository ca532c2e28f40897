-- Make a durable checkpoint the run's current one, and end the tasks it was trained on.
-- Invariants: fenced; steps only go forward (go_back.lua sets a run back); a group is acknowledged, deleted and written to the
-- ledger in the same moment, and only when a checkpoint holds what it taught. A checkpoint of an
-- RL run covers recorded plans only: all steps have one, or nothing changes. The ledger keeps,
-- beside each task, the version of its oldest token, and the lineage under which it was planned,
-- so that staleness can be computed again from it alone.
-- With a curriculum, the pass rates of the rows that were trained change in the same moment, too: they
-- follow from the tasks that have ended.
-- O(groups acknowledged).
-- KEYS run plans groups blobs bytes ledger tries pass_rates
-- ARGV fencing_token lineage step directory
-- Reply groups acknowledged, -1 fenced, or -1 - s where step s was never planned
local run, plans, groups, blobs, bytes, ledger, tries, pass_rates = unpack(KEYS)
if fenced(run, ARGV[1]) then return -1 end
local step = tonumber(ARGV[3])
local r = redis.call('HMGET', run, 'kind', 'committed_step')
local committed = tonumber(r[2] or '0')
if step < committed then return 0 end
if r[1] == 'rl' then
  for s = committed + 1, step do
    if redis.call('HEXISTS', plans, s) == 0 then return -1 - s end
  end
end
-- What it frees is more than what it writes.
also_when_full(run)
local acknowledged = 0
for s = committed + 1, r[1] == 'rl' and step or committed do
  local plan = cjson.decode(redis.call('HGET', plans, s))
  local tasks, oldest = {}, {}
  for i, pair in ipairs(plan.pairs) do
    local entry = redis.call('XRANGE', groups, pair[1], pair[1])[1]
    tasks[i], oldest[i] = pair[2], entry and entry[2][6] .. ':' .. entry[2][4] or ''
    if entry then
      if entry[2][11] == 'row' then note_passed(pass_rates, entry[2][12], entry[2][14]) end
      remove_group(groups, blobs, bytes, pair[1], pair[2])
    end
    redis.call('HDEL', tries, position_of(pair[2]))
  end
  redis.call('XADD', ledger, '*', 'end', 'trained', 'step', s, 'lineage', ARGV[2],
    'planned', plan.lineage, 'tasks', cjson.encode(tasks), 'oldest', cjson.encode(oldest))
  redis.call('HDEL', plans, s)
  acknowledged = acknowledged + #tasks
end
redis.call('HSET', run, 'committed_step', step, 'checkpoint', ARGV[4])
return acknowledged
