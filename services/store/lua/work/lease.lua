-- Lease up to ARGV[4] tasks to a worker.
-- Invariants: a task is in exactly one of: not yet leased, returned, held by one attempt, in the
-- stream, ended. committed*B + waiting + held never exceeds min(u + eta + 1, max_steps) * B for
-- the version u that the asking worker serves, and u belongs to the run's current lineage.
-- Bytes: while the learner lacks groups for its next batch, they do not limit leases. Once it has these,
-- a task is leased only if the groups in flight are likely to find room: each counts with the mean size of
-- the newest groups (`group_bytes`), and before there are any with `reserve_bytes`; those do not count that
-- the learner trains while they are sampled (`group_steps` batches). Whatever their sizes turn out to be,
-- `complete` keeps what Redis holds within the budget.
-- A call repeated because its reply was lost gets the same answer again; of a live run it gets
-- other sessions, and those of the lost reply are leased again once they lapse.
-- `exhausted`: no task is open, and since a group was last finished every row was leased twice and
-- dropped. `filtered_group`: more groups than the run allows were filtered while one batch was
-- finished.
-- A live run (`live` of its order) leases to each of its sessions that are ready, as `SESSION.TOKEN`, the next
-- task: a session that has been handed in is not among them (see complete), so it is trained once.
-- `unready`: no session is.
-- O(tasks leased + attempts lapsed since the last call), not O(in flight); of a live run O(in flight).
-- KEYS run order returned attempts held groups bytes plans sessions_ready
-- ARGV worker lineage version count ttl_ms reserve_bytes attempt...
-- Reply {refusal or '', attempt, task, attempt, task, ...}
local run, order, returned, attempts, held, groups, bytes, plans, ready = unpack(KEYS)
local worker, lineage, version = ARGV[1], ARGV[2], tonumber(ARGV[3])
local count, ttl, reserve = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local now = now_ms()

-- Where Redis' clock has gone back, no lease lasts longer for it than a minute.
for _, attempt in ipairs(redis.call('ZRANGEBYSCORE', attempts, now + ttl + 60001, '+inf')) do
  redis.call('ZADD', attempts, now + ttl, attempt)
end
for _, attempt in ipairs(redis.call('ZRANGEBYSCORE', attempts, '-inf', now)) do
  return_task(returned, end_attempt(attempts, held, attempt))
end

local reply = {''}
for i = 7, #ARGV do
  local record = redis.call('HGET', held, ARGV[i])
  if not record then break end
  reply[#reply + 1] = ARGV[i]
  reply[#reply + 1] = string.match(record, '^(%S+)')
end
if #reply > 1 then return reply end

local r = redis.call('HMGET', run, 'state', 'lineage', 'batch', 'max_staleness', 'max_steps',
  'committed_step', 'stream_bytes')
if r[1] ~= 'running' or not (r[3] and r[5]) then return {'state'} end
if r[2] ~= lineage then return {'lineage'} end
local batch, eta, max_steps = tonumber(r[3]), tonumber(r[4]), tonumber(r[5])
local committed, budget = tonumber(r[6] or '0'), tonumber(r[7])

local waiting, in_flight = redis.call('XLEN', groups), redis.call('ZCARD', attempts)
local admitted = math.min(version + eta + 1, max_steps) * batch
count = math.min(count, admitted - (committed * batch + waiting + in_flight))
if count <= 0 then return {'admission'} end

local usual = redis.call('HMGET', order, 'group_bytes', 'group_steps')
local size, trained = tonumber(usual[1] or reserve), math.floor(tonumber(usual[2] or '0') * batch)
local room = math.floor((budget - tonumber(redis.call('GET', bytes) or '0')) / size)
if unplanned(groups, plans, batch) >= batch then count = math.min(count, room + trained - in_flight) end
if count <= 0 then return {'bytes'} end

local o = redis.call('HMGET', order, 'position', 'epoch', 'rows', 'index', 'dataset_rows', 'last_finished',
  'filtered', 'filtered_limit', 'live')
local position, epoch, rows, index = tonumber(o[1]), tonumber(o[2]), tonumber(o[3]), tonumber(o[4])
local dataset_rows, last_finished = tonumber(o[5]), tonumber(o[6] or '0')
if o[8] and tonumber(o[7] or '0') > tonumber(o[8]) then return {'filtered_group'} end
local names = {unpack(ARGV, 7)}
if o[9] then
  names = {}
  local leased = {}
  for _, attempt in ipairs(redis.call('ZRANGE', attempts, 0, -1)) do leased[session_of(attempt)] = true end
  for _, session in ipairs(redis.call('ZRANGE', ready, 0, in_flight + count - 1)) do
    local token = ARGV[7 + #names]
    if token and not leased[session] then names[#names + 1] = session .. '.' .. token end
  end
  count = math.min(count, #names)
  if count == 0 then return {'unready'} end
elseif in_flight == 0 and redis.call('ZCARD', returned) == 0
  and position - last_finished >= 2 * math.max(rows, dataset_rows) then
  return {'exhausted'}
end
-- A full Redis refuses this one, before anything has changed.
redis.call('HSET', order, 'position', position)
for i = 1, count do
  local task
  repeat task = redis.call('ZPOPMIN', returned)[1] until not task or is_task(task)
  if not task then
    if index >= rows then
      if dataset_rows == 0 then break end
      epoch, rows, index = epoch + 1, dataset_rows, 0
    end
    task = position .. ':' .. epoch .. ':' .. rows .. ':' .. index
    position, index = position + 1, index + 1
  end
  local attempt = names[i]
  redis.call('ZADD', attempts, now + ttl, attempt)
  local granted = lineage .. ':' .. ARGV[3]
  redis.call('HSET', held, attempt, task .. ' ' .. worker .. ' ' .. now .. ' ' .. granted)
  reply[#reply + 1] = attempt
  reply[#reply + 1] = task
end
redis.call('HSET', order, 'position', position, 'epoch', epoch, 'rows', rows, 'index', index)
return reply
