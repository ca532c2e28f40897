-- Hand out up to ARGV[4] draws to a worker.
-- Invariants: a draw is in exactly one of: not yet drawn, returned, held by one attempt, in the
-- stream, ended. committed*B + waiting + held never exceeds min(u + eta + 1, max_steps) * B for
-- the version u that the asking worker serves, and u belongs to the run's current lineage.
-- Bytes: waiting + what held groups may still add stays within the budget, so that `complete`
-- never has to be refused.
-- KEYS run order returned attempts held groups bytes
-- ARGV worker lineage version count ttl_ms reserve_bytes attempt...
-- Reply {refusal or '', attempt, draw, attempt, draw, ...}
local run, order, returned, attempts, held, groups, bytes = unpack(KEYS)
local worker, lineage, version = ARGV[1], ARGV[2], tonumber(ARGV[3])
local count, ttl, reserve = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local now = now_ms()

local expired = redis.call('ZRANGEBYSCORE', attempts, '-inf', now)
for _, attempt in ipairs(expired) do
  local record = redis.call('HGET', held, attempt)
  redis.call('LPUSH', returned, string.match(record, '^(%S+)'))
  redis.call('HDEL', held, attempt)
  redis.call('ZREM', attempts, attempt)
end

local r = redis.call('HMGET', run, 'state', 'lineage', 'batch', 'max_staleness', 'max_steps',
  'committed_step', 'stream_bytes', 'cancel_requested')
if r[1] ~= 'running' or r[8] == '1' then return {'state'} end
if r[2] ~= lineage then return {'lineage'} end
local batch, eta, max_steps = tonumber(r[3]), tonumber(r[4]), tonumber(r[5])
local committed, budget = tonumber(r[6] or '0'), tonumber(r[7])

local waiting, in_flight = redis.call('XLEN', groups), redis.call('ZCARD', attempts)
local admitted = math.min(version + eta + 1, max_steps) * batch
count = math.min(count, admitted - (committed * batch + waiting + in_flight))
if count <= 0 then return {'admission'} end

local used = tonumber(redis.call('GET', bytes) or '0') + in_flight * reserve
if waiting + in_flight > 0 then
  count = math.min(count, math.floor((budget - used) / reserve))
  if count <= 0 then return {'bytes'} end
end

local reply = {''}
for i = 1, count do
  local draw = redis.call('LPOP', returned)
  if not draw then
    local o = redis.call('HMGET', order, 'position', 'epoch', 'rows', 'index', 'dataset_rows')
    local position, epoch, rows, index = tonumber(o[1]), tonumber(o[2]), tonumber(o[3]), tonumber(o[4])
    if index >= rows then
      epoch, rows, index = epoch + 1, tonumber(o[5]), 0
      if rows == 0 then break end
    end
    draw = position .. ':' .. epoch .. ':' .. rows .. ':' .. index
    redis.call('HSET', order, 'position', position + 1, 'epoch', epoch, 'rows', rows, 'index', index + 1)
  end
  local attempt = ARGV[6 + i]
  redis.call('ZADD', attempts, now + ttl, attempt)
  redis.call('HSET', held, attempt, draw .. ' ' .. worker .. ' ' .. now)
  reply[#reply + 1] = attempt
  reply[#reply + 1] = draw
end
if #reply == 1 then return {'exhausted'} end
return reply
