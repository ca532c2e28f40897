-- End attempts without ending their draws: they go out again first, in the run's order.
-- With a cause, the draw's failures of that kind are counted, and the draw is dropped (ends) at
-- the limit: one bad row cannot circle for ever.
-- Invariant: exactly one of {returned, ledger} gets the draw, and only if the attempt held it.
-- KEYS attempts held returned tries ledger
-- ARGV cause ('' for none) detail limit attempt...
-- Reply how many draws were dropped
local attempts, held, returned, tries, ledger = unpack(KEYS)
local cause, detail, limit, dropped = ARGV[1], ARGV[2], tonumber(ARGV[3]), 0
for i = 4, #ARGV do
  local draw = let_go(attempts, held, ARGV[i])
  if draw then
    if cause ~= '' and failed_again(tries, draw, cause) >= limit then
      drop_draw(ledger, tries, draw, cause, detail)
      dropped = dropped + 1
    else
      put_back(returned, draw)
    end
  end
end
return dropped
