"""What becomes of a rollout when the engine, a sandbox or the driver breaks: rows of a table in
`docs/evidence/failures.md`.
"""
