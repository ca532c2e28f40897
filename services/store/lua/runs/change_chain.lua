-- Write, change or delete a chain, and list it as open until it is over.
-- Invariants: a chain changes only if it still is what the caller has read. `open_chains` has exactly the chains
-- that are not over. A call that is repeated because its reply was lost changes nothing, and replies 1.
-- KEYS chains open_chains
-- ARGV id old new open
--   old: '' for a new chain. new: '' deletes the chain. open: 1 or 0
-- Reply 1 the chain is `new`, 0 another caller has changed it
local present = redis.call('HGET', chains, id) or ''
if present ~= old and present ~= new then return 0 end
if new == '' then
  redis.call('HDEL', chains, id)
else
  redis.call('HSET', chains, id, new)
end
redis.call(open == '1' and 'SADD' or 'SREM', open_chains, id)
return 1
