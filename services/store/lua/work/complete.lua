-- End a held attempt and put its group into the stream.
-- Invariants: a task is completed once, by the attempt that holds it. A lapsed attempt returns its task, and its
-- group is discarded. A group is never refused for its size: if the stream is full, the attempt keeps its lease,
-- whose record then says that the group waits, and for which version (in_flight.lua). The sessions of an attempt
-- end at the moment at which their group is accepted.
--
-- Fields of `order`:
--   group_bytes, group_steps  means over recent groups, each with weight 1/32: the size, and the versions that were
--                             published between lease and completion (lease.lua)
--   last_finished             the position at the last completion: no task leased since has finished (lease.lua)
--   finished, filtered        groups of the present batch that were completed, and filtered (filter_group.lua)
--   accepted                  all groups of the run (live_refused.lua)
-- KEYS attempts held groups blobs bytes returned order run plans partials sessions_ready sessions
-- ARGV attempt min_version lineage blob lengths row passed
--   row, passed: with a curriculum; missing without one
-- Reply 1 accepted, 0 discarded, 2 the stream is full
local deadline = redis.call('ZSCORE', attempts, attempt)
if not deadline then return 0 end
if tonumber(deadline) <= now_ms() then
  return_task(returned, end_attempt(attempts, held, attempt))
  return 0
end
if not stream_takes(run, groups, bytes, plans, #blob, tonumber(min_version), lineage) then
  local lease = string.match(redis.call('HGET', held, attempt) or '', '^(%S+ %S+ %S+)')
  if lease then
    redis.call('HSET', held, attempt, lease .. ' ' .. lineage .. ':' .. min_version .. ' waits')
  end
  return 2
end
local granted, version, waits = string.match(redis.call('HGET', held, attempt) or '', '(%S+):(%d+)( ?%a*)$')
local task = end_attempt(attempts, held, attempt)
end_sessions(sessions_ready, sessions, attempt, 'completed')
forget_partial(partials, bytes, task)
redis.call('HSET', blobs, position_of(task), blob)
redis.call('INCRBY', bytes, #blob)
redis.call('XADD', groups, '*', 'task', task, 'min_version', min_version, 'lineage', lineage, 'bytes', #blob,
  'lengths', lengths, unpack(row and {'row', row, 'passed', passed} or {}))
local o = hash_fields(order, 'position', 'batch', 'group_bytes', 'group_steps')
local size, steps = tonumber(o.group_bytes or #blob), tonumber(o.group_steps or '0')
local r = hash_fields(run, 'lineage', 'version')
-- A group that waited for the stream does not show how long groups take.
if waits == '' and granted == r.lineage then
  steps = steps + (math.max(0, tonumber(r.version or '0') - tonumber(version)) - steps) / 32
end
redis.call('HSET', order, 'last_finished', o.position, 'group_bytes', math.ceil(size + (#blob - size) / 32),
  'group_steps', steps)
redis.call('HINCRBY', order, 'accepted', 1)
if redis.call('HINCRBY', order, 'finished', 1) >= tonumber(o.batch) then
  redis.call('HSET', order, 'finished', 0, 'filtered', 0)
end
return 1
