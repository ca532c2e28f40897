-- The nodes of a pool's learner agree on when their ranks start and end. Each node calls every second.
-- A start begins when every node has called lately and none has ranks that run. It ends for all when
-- the ranks of one node have ended, or one node has not called for `lapse_ms`.
-- Invariant: a start has the same nodes from its begin to its end. Another process that claims the
-- number of a node, or another count of nodes, waits until those that call have left or lapsed.
-- O(nodes).
-- KEYS nodes ranks   ARGV count node token ranks running ended candidate lapse_ms
--   ranks: that this node has; 0: it leaves.   running, ended: the start whose ranks run on this node,
--   and the last whose ranks have ended; '' for none.   candidate: id of the start that may begin now
-- Reply {start that runs or '', token of the process to wait for or '', ranks of node 0, of node 1, …}
--   ranks 0: the node has not called
local nodes, data = unpack(KEYS)
local count, node, token, ranks, running, ended, candidate, lapse = unpack(ARGV)
local now, known = now_ms(), {}
local fields = redis.call('HGETALL', nodes)
for i = 1, #fields, 2 do
  if fields[i] ~= 'start' and fields[i] ~= 'members' then
    local one = cjson.decode(fields[i + 1])
    -- Where Redis' clock has gone back, no node counts as there for longer than any other.
    if one.deadline > now + tonumber(lapse) then
      one.deadline = now + tonumber(lapse)
      redis.call('HSET', nodes, fields[i], cjson.encode(one))
    end
    if one.deadline > now then
      if one.token ~= token and (one.count ~= count or fields[i] == node) then
        return {'', one.token}
      end
      known[fields[i]] = one
    end
  end
end
if ranks == '0' then
  redis.call('HDEL', nodes, node)
  return {'', ''}
end
known[node] = {token = token, count = count, ranks = tonumber(ranks), running = running,
  deadline = now + tonumber(lapse)}
redis.call('HSET', nodes, node, cjson.encode(known[node]))

local tokens, reply, all, idle = {}, {'', ''}, true, true
for n = 0, tonumber(count) - 1 do
  local one = known[tostring(n)]
  all = all and one ~= nil
  idle = idle and (one == nil or one.running == '')
  tokens[#tokens + 1] = one and one.token or '?'
  reply[#reply + 1] = one and one.ranks or 0
end
local members = table.concat(tokens, ' ')
local start = redis.call('HGET', nodes, 'start') or ''
if start == ended or redis.call('HGET', nodes, 'members') ~= members then start = '' end
if start == '' and all and idle then
  start = candidate
  redis.call('DEL', data)
end
redis.call('HSET', nodes, 'start', start, 'members', members)
redis.call('PEXPIRE', nodes, 6 * tonumber(lapse))
redis.call('PEXPIRE', data, 6 * tonumber(lapse))
reply[1] = start
return reply
