-- End attempts without ending their tasks: they are leased again first, in the run's order.
-- With a cause, the task's failures of that kind are counted, and the task is dropped (ends) at
-- the limit: one bad row cannot circle for ever.
-- Invariant: exactly one of {returned, ledger} gets the task, and only if the attempt held it.
-- KEYS attempts held returned tries ledger
-- ARGV cause ('' for none) detail limit attempt...
-- Reply how many tasks were dropped
local attempts, held, returned, tries, ledger = unpack(KEYS)
local cause, detail, limit, dropped = ARGV[1], ARGV[2], tonumber(ARGV[3]), 0
for i = 4, #ARGV do
  local task = end_attempt(attempts, held, ARGV[i])
  if task and cause == '' then
    return_task(returned, task)
  elseif task then
    dropped = dropped + return_or_drop(returned, tries, ledger, task, cause, limit, cause, detail)
  end
end
return dropped
