-- Lease up to `count` tasks to a worker that serves `version` of `lineage`.
--
-- Invariants. A task is in exactly one place: not yet leased, returned, held by one attempt, in the stream, or
-- ended. Admission: committed*B + waiting + held stays at or below min(u + eta + 1, max_steps) * B for the
-- version u that the worker serves, and u belongs to the run's current lineage.
--
-- Bytes limit leases only once the stream has the learner's next batch. Then a task is leased only if all groups
-- in flight are likely to fit in `stream_bytes`. A group in flight counts with the mean size of recent groups
-- (`group_bytes`; `reserve_bytes` before the first group). Groups that the learner will have trained by then
-- (`group_steps` batches) do not count. complete.lua keeps the stream within `stream_bytes` in any case.
--
-- A call that is repeated because its reply was lost gets the same answer.
--
-- A live run (`live` in `order`) leases ready sessions instead, each with the next task, as `SESSION.TOKEN`. A
-- completed session leaves `sessions_ready` (complete.lua), so it is trained once. A repeated call gets other
-- sessions; those of the lost reply are leased again once they lapse.
--
-- O(tasks leased + attempts lapsed since the last call), not O(in flight); for a live run O(in flight).
-- KEYS run order returned attempts held groups bytes plans partials sessions_ready
-- ARGV worker lineage version count ttl_ms reserve_bytes names...
-- Reply {refusal or '', attempt, task, attempt, task, ...}. A task with a partial ends with ' continued': the attempt
-- goes on from it, and counts as leased for the version of its oldest token. A task ends with ' stale' if its
-- partial was deleted, because no batch may train it any more. A refusal is one of:
--   state           the run is not running, or was asked to pause
--   lineage         the worker serves another lineage
--   admission       the batches that may train this version are full
--   bytes           the groups in flight would not fit in the stream
--   filtered_group  more groups were filtered than the run allows for one batch
--   exhausted       no task is open, and every row was leased twice and dropped since the last group was finished
--   unready         a live run has no ready session
local now, ttl = now_ms(), tonumber(ttl_ms)

for _, task in ipairs(end_lapsed(attempts, held, now, ttl)) do return_task(returned, task) end

local reply = {''}
if append_granted(reply, held, names) then return mark_partials(reply, partials) end

local r = hash_fields(run, 'state', 'lineage', 'batch', 'max_staleness', 'max_steps', 'committed_step', 'stream_bytes',
  'paused_by', 'version')
if r.state ~= 'running' or (r.paused_by or '') ~= '' or not (r.batch and r.max_steps) then return {'state'} end
if r.lineage ~= lineage then return {'lineage'} end
local batch, eta, max_steps = tonumber(r.batch), tonumber(r.max_staleness), tonumber(r.max_steps)
local committed, budget = tonumber(r.committed_step or '0'), tonumber(r.stream_bytes)

local waiting, in_flight = redis.call('XLEN', groups), redis.call('ZCARD', attempts)
local admitted = math.min(version + eta + 1, max_steps) * batch
count = math.min(count, admitted - (committed * batch + waiting + in_flight))
if count <= 0 then return {'admission'} end

local usual = hash_fields(order, 'group_bytes', 'group_steps')
local size = tonumber(usual.group_bytes or reserve_bytes)
local trained = math.floor(tonumber(usual.group_steps or '0') * batch)
local fitting = math.floor((budget - tonumber(redis.call('GET', bytes) or '0')) / size)
if unplanned(groups, plans, batch) >= batch then count = math.min(count, fitting + trained - in_flight) end
if count <= 0 then return {'bytes'} end

local o = hash_fields(order, 'position', 'epoch', 'rows', 'index', 'dataset_rows', 'last_finished', 'filtered',
  'filtered_limit', 'live')
local position, epoch, rows, index = tonumber(o.position), tonumber(o.epoch), tonumber(o.rows), tonumber(o.index)
local dataset_rows, last_finished = tonumber(o.dataset_rows), tonumber(o.last_finished or '0')
if o.filtered_limit and tonumber(o.filtered or '0') > tonumber(o.filtered_limit) then return {'filtered_group'} end
if o.live then
  local tokens, leased = names, {}
  names = {}
  for _, attempt in ipairs(redis.call('ZRANGE', attempts, 0, -1)) do leased[session_of(attempt)] = true end
  for _, session in ipairs(redis.call('ZRANGE', sessions_ready, 0, in_flight + count - 1)) do
    local token = tokens[1 + #names]
    if token and not leased[session] then names[#names + 1] = session .. '.' .. token end
  end
  count = math.min(count, #names)
  if count == 0 then return {'unready'} end
elseif in_flight == 0 and redis.call('ZCARD', returned) == 0
  and position - last_finished >= 2 * math.max(rows, dataset_rows) then
  return {'exhausted'}
end
-- A full Redis refuses this write, before anything has changed.
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
  local leased_for, mark = lineage .. ':' .. version, ''
  local oldest = redis.call('HGET', partials, position_of(task) .. ':oldest')
  if oldest then
    local from, sampled = string.match(oldest, '^(.*):(%d+)$')
    if from == lineage and tonumber(sampled) + eta >= tonumber(r.version or '0') then
      leased_for, mark = lineage .. ':' .. math.min(tonumber(sampled), version), ' continued'
    else
      mark = ' stale'
      forget_partial(partials, bytes, task)
    end
  end
  grant(attempts, held, names[i], now + ttl, task .. ' ' .. worker .. ' ' .. now .. ' ' .. leased_for)
  reply[#reply + 1] = names[i]
  reply[#reply + 1] = task .. mark
end
redis.call('HSET', order, 'position', position, 'epoch', epoch, 'rows', rows, 'index', index)
return reply
