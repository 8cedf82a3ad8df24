"""The shipped alerts, whose time runs sixty times as fast."""

import re

MAPPING = (
    "minutes are seconds in `for` and in ranges; a threshold of a second or more is a tenth of it; expressions are as shipped"
)

_MINUTES = {"m": 1, "h": 60}


class Rule:
    """An alert, as it is shipped and as it is tried."""

    def __init__(self, name, shipped, tried):
        self.name, self.shipped, self.tried = name, shipped, tried
        # It fires on for as long as the fault is within its longest range.
        ranges = [int(seconds) for seconds in re.findall(r"\[(\d+)s\]", tried)]
        self.range_s = max(ranges, default=0)
        self.for_s = int(re.search(r"for: (\d+)s", tried).group(1))


def _seconds(match):
    return f"{match[1]}{int(match[2]) * _MINUTES[match[3]]}s{match[4]}"


def _tenth(match):
    seconds = float(match[2])
    return match[0] if seconds < 1 else f"{match[1]}{seconds / 10:g}"


def shorten(text):
    """Applies the mapping to a text with rules or queries."""
    text = re.sub(r"(\[)(\d+)([mh])(\])", _seconds, text)
    text = re.sub(r"(\bfor: )(\d+)([mh])(\b)", _seconds, text)
    # What is compared with seconds: a quantile of a histogram of them, or an age.
    return re.sub(r"((?:_seconds_bucket\[\w+\]\)+|_age_seconds|_lag_seconds) > )([0-9.]+)(?! \*)", _tenth, text)


def read(path):
    """The rules of a file by their names, and the text of the file as it is tried."""
    text = path.read_text()
    tried = shorten(text)
    parts = [re.split(r"(?m)^ *- alert: ", part)[1:] for part in (text, tried)]
    rules = {}
    for shipped, short in zip(*parts, strict=True):
        name = shipped.split("\n", 1)[0].strip()
        rules[name] = Rule(name, shipped, short)
    return rules, tried
