#!/bin/sh
# Writes the report of the day.
set -eu
cd "$(dirname "$0")/.."
python3 src/main.py data/sightings.csv > report.txt
