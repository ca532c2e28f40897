-- Let the nodes of a pool's learner agree on when their ranks start and end. Each node calls every second.
-- A start begins when every node has called within `lapse_ms` and no node has running ranks. It ends for all nodes
-- when the ranks of one node have ended, or one node has not called for `lapse_ms`.
-- Invariant: a start has the same nodes from its begin to its end. A process that claims a taken node number, or
-- another count of nodes, waits until the present nodes have left or lapsed.
-- O(nodes).
-- KEYS nodes ranks
-- ARGV count node token rank_count running ended candidate lapse_ms
--   rank_count: of this node; 0: it leaves. running, ended: the start whose ranks run on this node, and the last start
--   whose ranks have ended there; '' for none. candidate: id of the start that may begin now
-- Reply {start that runs or '', token of the process to wait for or '', ranks of node 0, of node 1, …}
--   ranks 0: the node has not called
local now, present = now_ms(), {}
local fields = redis.call('HGETALL', nodes)
for i = 1, #fields, 2 do
  if fields[i] ~= 'start' and fields[i] ~= 'members' then
    local other = cjson.decode(fields[i + 1])
    -- Redis' clock was set back: no node counts as present for longer than `lapse_ms`.
    if other.deadline > now + tonumber(lapse_ms) then
      other.deadline = now + tonumber(lapse_ms)
      redis.call('HSET', nodes, fields[i], cjson.encode(other))
    end
    if other.deadline > now then
      if other.token ~= token and (other.count ~= count or fields[i] == node) then
        return {'', other.token}
      end
      present[fields[i]] = other
    end
  end
end
if rank_count == '0' then
  redis.call('HDEL', nodes, node)
  return {'', ''}
end
present[node] = {token = token, count = count, ranks = tonumber(rank_count), running = running,
  deadline = now + tonumber(lapse_ms)}
redis.call('HSET', nodes, node, cjson.encode(present[node]))

local tokens, reply, all, idle = {}, {'', ''}, true, true
for n = 0, tonumber(count) - 1 do
  local member = present[tostring(n)]
  all = all and member ~= nil
  idle = idle and (member == nil or member.running == '')
  tokens[#tokens + 1] = member and member.token or '?'
  reply[#reply + 1] = member and member.ranks or 0
end
local members = table.concat(tokens, ' ')
local start = redis.call('HGET', nodes, 'start') or ''
if start == ended or redis.call('HGET', nodes, 'members') ~= members then start = '' end
if start == '' and all and idle then
  start = candidate
  redis.call('DEL', ranks)
end
redis.call('HSET', nodes, 'start', start, 'members', members)
redis.call('PEXPIRE', nodes, 6 * tonumber(lapse_ms))
redis.call('PEXPIRE', ranks, 6 * tonumber(lapse_ms))
reply[1] = start
return reply
