"""The compiler's verdicts on plans and on users' functions, as text for the terminal."""
