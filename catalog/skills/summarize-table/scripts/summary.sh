#!/bin/sh
# Summarizes a table whose values are separated by commas, semicolons or tabs, and whose first line names the columns.
# usage: summary.sh [FILE]; without a file the table is read from the standard input.
set -eu

if ! command -v awk >/dev/null 2>&1; then
  echo "this script needs awk, which is not on this machine" >&2
  exit 1
fi
if [ "$#" -gt 1 ]; then
  echo "usage: summary.sh [FILE]" >&2
  exit 2
fi
if [ "$#" -eq 1 ]; then
  exec <"$1"
fi

# Bytes, so that every awk reads alike whatever the text is.
LC_ALL=C exec awk '
function occurs(line, mark,   rest) { rest = line; return gsub(mark, "", rest) }

# What separates the values: what stands most often in the first line, outside quotes.
function separator(line,   commas, semicolons, tabs) {
  gsub(/"[^"]*"/, "", line)
  commas = occurs(line, ","); semicolons = occurs(line, ";"); tabs = occurs(line, "\t")
  if (tabs > commas && tabs >= semicolons) return "\t"
  return semicolons > commas ? ";" : ","
}

function cell(text) {
  gsub(/[|]/, "\\|", text); gsub(/[\n\t]/, " ", text)
  return length(text) > 40 ? substr(text, 1, 40) "..." : text
}

function number(value) { return sprintf("%.10g", value) }

function take(   column, value) {
  if (!columns) {
    for (column = 1; column <= n; column++) name[column] = field[column]
    columns = n
  } else if (n > 1 || field[1] != "") {
    rows++
    if (n != columns) odd++
    for (column = 1; column <= n && column <= columns; column++) {
      value = field[column]
      gsub(/^[ \t]+|[ \t]+$/, "", value)
      if (value == "") continue
      filled[column]++
      if (!((column, value) in seen)) { seen[column, value] = 1; different[column]++ }
      if (value ~ /^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?$/) {
        figure = value + 0
        if (!numbers[column]++ || figure < low[column]) low[column] = figure
        if (numbers[column] == 1 || figure > high[column]) high[column] = figure
        sum[column] += figure
      }
      if (filled[column] == 1 || (value "") < first[column]) first[column] = value ""
      if (filled[column] == 1 || (value "") > last[column]) last[column] = value ""
    }
  }
  n = 0
}

{
  sub(/\r$/, "")
  if (NR == 1) { sub(/^\357\273\277/, ""); mark = separator($0) }
  if (quoted) value = value "\n"
  long = length($0)
  for (at = 1; at <= long; at++) {
    c = substr($0, at, 1)
    if (quoted) {
      if (c != "\"") value = value c
      else if (substr($0, at + 1, 1) == "\"") { value = value c; at++ }
      else quoted = 0
    } else if (c == "\"" && value == "") quoted = 1
    else if (c == mark) { field[++n] = value; value = "" }
    else value = value c
  }
  if (!quoted) { field[++n] = value; value = ""; take() }
}

END {
  if (!columns) { print "the table is empty" > "/dev/stderr"; exit 1 }
  if (quoted) { print "a quote that begins in the table has no end: what follows it was not read" > "/dev/stderr"; failed = 1 }
  printf "%d rows, %d columns\n\n", rows, columns
  print "| column | filled | different | kind | smallest | largest | mean |"
  print "|---|---|---|---|---|---|---|"
  for (column = 1; column <= columns; column++) {
    kind = "text"; from = cell(first[column]); to = cell(last[column]); mean = ""
    if (!filled[column]) kind = "empty"
    else if (numbers[column] == filled[column]) {
      kind = "number"; from = number(low[column]); to = number(high[column]); mean = number(sum[column] / numbers[column])
    } else if (numbers[column]) kind = "text and " numbers[column] " numbers"
    printf "| %s | %d | %d | %s | %s | %s | %s |\n", cell(name[column]), filled[column], different[column], kind, from, to, mean
  }
  if (odd) printf "\nWarning: %d rows have more or fewer values than the first line.\n", odd
  exit failed
}'
