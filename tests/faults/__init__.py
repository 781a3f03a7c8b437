"""Random work on pools that break by schedule, judged from outside."""
