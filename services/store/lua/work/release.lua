-- End attempts and return their tasks. With a `cause`, count a failure of each task, and drop a task that has
-- failed `limit` times for it: a bad row does not circle for ever.
-- Invariant: a task goes to exactly one of {returned, ledger}, and only if the attempt held it.
-- KEYS attempts held returned tries ledger
-- ARGV cause ('' for none) detail limit attempt...
-- Reply the number of tasks that were dropped
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
