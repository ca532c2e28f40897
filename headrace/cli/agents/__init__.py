"""`headrace agents`: the command, what plays a session, and the loop that plays them all."""
