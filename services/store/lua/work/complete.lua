-- Turn a held attempt into a group in the stream.
-- Invariant: only the attempt that holds a task completes it, once; a lapsed attempt returns its
-- task, and its group is discarded. A group is never refused for space: one that finds no room keeps
-- its lease, which then says that it waits, and for which version (see in_flight).
-- `group_bytes` and `group_steps` are means of the newest groups, each of which counts 1/32: their size, and
-- how many versions were published between lease and completion (see lease).
-- `last_finished` is the cursor at the newest completion: no task leased since has been of use yet
-- (see lease). `finished` counts the groups of a batch, `filtered` those without a signal meanwhile
-- (see filter_group). `accepted` counts the groups of the run (see live_refused).
-- Its sessions end here, at the moment at which their group is accepted, and at no other one.
-- A worker of an earlier version leases a live session as `SESSION`, and sees no lease as `SESSION.TOKEN`. Of two
-- such attempts the first to complete is accepted: the other one's task is returned, here or when it comes.
-- KEYS attempts held groups blobs bytes returned order run plans sessions_ready sessions
-- ARGV attempt min_version lineage blob lengths [row passed]: with a curriculum, for the commit
-- Reply 1 accepted, 0 discarded, 2 no room yet
local attempts, held, groups, blobs, bytes, returned, order, run, plans, ready, sessions = unpack(KEYS)
local deadline = redis.call('ZSCORE', attempts, ARGV[1])
if not deadline then return 0 end
if tonumber(deadline) <= now_ms() then
  return_task(returned, end_attempt(attempts, held, ARGV[1]))
  return 0
end
local session = session_of(ARGV[1])
local live = session ~= ARGV[1]
if live and not redis.call('ZSCORE', ready, session) then
  return_task(returned, end_attempt(attempts, held, ARGV[1]))
  return 0
end
if not has_room(run, groups, bytes, plans, #ARGV[4], tonumber(ARGV[2]), ARGV[3]) then
  local lease = string.match(redis.call('HGET', held, ARGV[1]) or '', '^(%S+ %S+ %S+)')
  if lease then
    redis.call('HSET', held, ARGV[1], lease .. ' ' .. ARGV[3] .. ':' .. ARGV[2] .. ' waits')
  end
  return 2
end
local lineage, version, waits = string.match(redis.call('HGET', held, ARGV[1]) or '', '(%S+):(%d+)( ?%a*)$')
local task = end_attempt(attempts, held, ARGV[1])
end_sessions(ready, sessions, ARGV[1], 'completed')
if live then return_task(returned, end_attempt(attempts, held, session)) end
redis.call('HSET', blobs, position_of(task), ARGV[4])
redis.call('INCRBY', bytes, #ARGV[4])
redis.call('XADD', groups, '*', 'task', task, 'min_version', ARGV[2], 'lineage', ARGV[3], 'bytes', #ARGV[4],
  'lengths', ARGV[5], unpack(ARGV[6] and {'row', ARGV[6], 'passed', ARGV[7]} or {}))
local o = redis.call('HMGET', order, 'position', 'batch', 'group_bytes', 'group_steps')
local size, steps = tonumber(o[3] or #ARGV[4]), tonumber(o[4] or '0')
local r = redis.call('HMGET', run, 'lineage', 'version')
-- One that waited for room says nothing of how long groups take.
if waits == '' and lineage == r[1] then
  steps = steps + (math.max(0, tonumber(r[2] or '0') - tonumber(version)) - steps) / 32
end
redis.call('HSET', order, 'last_finished', o[1], 'group_bytes', math.ceil(size + (#ARGV[4] - size) / 32),
  'group_steps', steps)
redis.call('HINCRBY', order, 'accepted', 1)
if redis.call('HINCRBY', order, 'finished', 1) >= tonumber(o[2]) then
  redis.call('HSET', order, 'finished', 0, 'filtered', 0)
end
return 1
