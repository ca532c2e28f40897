-- End attempts without ending their draws: they go to the front of the order.
-- With a cause, the draw's failures of that kind are counted, and the draw is dropped (ends) at
-- the limit: one bad row cannot circle for ever.
-- Invariant: exactly one of {returned, ledger} gets the draw, and only if the attempt held it.
-- KEYS attempts held returned tries ledger
-- ARGV cause ('' for none) limit attempt...
-- Reply how many draws were dropped
local attempts, held, returned, tries, ledger = unpack(KEYS)
local cause, limit, dropped = ARGV[1], tonumber(ARGV[2]), 0
for i = 3, #ARGV do
  if redis.call('ZREM', attempts, ARGV[i]) == 1 then
    local draw = string.match(redis.call('HGET', held, ARGV[i]), '^(%S+)')
    redis.call('HDEL', held, ARGV[i])
    local failures = 0
    if cause ~= '' then
      failures = redis.call('HINCRBY', tries, position_of(draw) .. ' ' .. cause, 1)
    end
    if cause ~= '' and failures >= limit then
      redis.call('HDEL', tries, position_of(draw) .. ' ' .. cause)
      redis.call('XADD', ledger, '*', 'end', 'dropped', 'reason', cause, 'draws', cjson.encode({draw}))
      dropped = dropped + 1
    else
      redis.call('LPUSH', returned, draw)
    end
  end
end
return dropped
