"""What `dumpsys telephony.registry` of an Android phone says of its signal. Pure.

Three shapes are in use (the fields of AOSP's `SignalStrength` and `CellSignalStrengthLte`, `...Nr`):

- up to Android 9, numbers by position: `SignalStrength: 99 0 -120 -160 -120 -1 -1 26 -87 -7 262 ...`:
  GSM (level, errors), CDMA, EvDO, then LTE: level, RSRP, RSRQ, SNR in tenths of a dB, CQI;
- Android 10, named: `mLte=CellSignalStrengthLte: rssi=-63 rsrp=-92 rsrq=-9 rssnr=80 cqi=12 ...`, the
  SNR still in tenths;
- from Android 11 on the same with `parametersUseForLevel`, later `cqiTableIndex`, the SNR in dB; 5G as
  `mNr=CellSignalStrengthNr:{ csiRsrp = ... ssRsrp = -95 ssRsrq = -11 ssSinr = 20 ... }`.

2147483647 (and in the oldest shape 99 or -1 for levels) means unknown.
"""

import re
from collections.abc import Mapping

_UNKNOWN = 2147483647
_PHONE = re.compile(r"^\s*(?:mPhoneId=\d+|Phone Id=\d+)", re.MULTILINE)
_CURRENT = re.compile(r"^\s*mSignalStrength=SignalStrength:(.*)$", re.MULTILINE)
_CONNECTED = re.compile(r"^\s*mDataConnectionState=2\s*$", re.MULTILINE)
_FIELD = re.compile(r"(\w+)\s*=\s*(-?\d{1,11})\b")
_SECTION = r"m{0}=CellSignalStrength{0}:\s*\{{?([^,}}]*)"
_NEWER = ("parametersUseForLevel", "cqiTableIndex")
# By position: GSM's level, LTE's level, RSRP, RSRQ, SNR, CQI.
_GSM, _LTE, _POSITIONS = 0, 7, 12


def parse_registry(text: str) -> dict[str, float]:
    """What is known of the mobile data: `rsrp_dbm`, `rsrq_db`, `sinr_db`, `cqi`, `rssi_dbm`, `dbm`.

    `dbm` is Android's own figure for the technology in use: RSRP of 5G or LTE, RSCP of UMTS, RSSI of
    GSM. Of two SIM cards the one with a data connection counts, else the first that has a signal.
    5G is preferred, as it carries the data where it is there.
    """
    phones = _phones(text)
    for phone in sorted(phones, key=lambda phone: _CONNECTED.search(phone) is None):
        if (line := _CURRENT.search(phone)) is not None and (values := _signal(line[1])):
            return values
    return {}


def _phones(text: str) -> list[str]:
    starts = [match.start() for match in _PHONE.finditer(text)]
    if not starts:
        return [text]
    return [text[begin:end] for begin, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _signal(line: str) -> dict[str, float]:
    if "=CellSignalStrength" not in line:
        return _by_position(line.split())
    nr = _fields(line, "Nr")
    values = _renamed(nr, {"ssRsrp": "rsrp_dbm", "ssRsrq": "rsrq_db", "ssSinr": "sinr_db"})
    if "rsrp_dbm" in values:
        return values | {"dbm": values["rsrp_dbm"]}
    lte = _fields(line, "Lte")
    names = {"rsrp": "rsrp_dbm", "rsrq": "rsrq_db", "rssnr": "sinr_db", "cqi": "cqi"}
    values = _renamed(lte, names | {"rssi": "rssi_dbm"})
    if "rsrp_dbm" in values:
        if "sinr_db" in values and not any(name in lte for name in _NEWER):
            values["sinr_db"] /= 10.0
        if values.get("rssi_dbm", -1.0) >= 0:  # some phones give the level here, 99 for unknown
            del values["rssi_dbm"]
        return values | {"dbm": values["rsrp_dbm"]}
    for technology, name in (("Wcdma", "rscp"), ("Wcdma", "ss"), ("Gsm", "rssi")):
        found = _renamed(_fields(line, technology), {name: "dbm"})
        if found.get("dbm", 0.0) < 0:
            return found
    return {}


def _fields(line: str, technology: str) -> dict[str, int]:
    section = re.search(_SECTION.format(technology), line)
    if section is None:
        return {}
    return {name: int(value) for name, value in _FIELD.findall(section[1])}


def _renamed(fields: Mapping[str, int], names: Mapping[str, str]) -> dict[str, float]:
    return {
        ours: float(fields[theirs])
        for theirs, ours in names.items()
        if fields.get(theirs, _UNKNOWN) != _UNKNOWN
    }


def _by_position(words: list[str]) -> dict[str, float]:
    numbers: list[int] = []
    for word in words:
        if re.fullmatch(r"-?\d{1,11}", word) is None:
            break
        numbers.append(int(word))
    if len(numbers) < _POSITIONS:
        return {}
    level, rsrp, rsrq, tenths, cqi = numbers[_LTE : _LTE + 5]
    values: dict[str, float] = {}
    if rsrp not in (_UNKNOWN, -1):
        values = {"rsrp_dbm": float(rsrp), "dbm": float(rsrp)}
        known = {"rsrq_db": (rsrq, 1.0), "sinr_db": (tenths, 10.0), "cqi": (cqi, 1.0)}
        values |= {name: n / unit for name, (n, unit) in known.items() if n != _UNKNOWN}
        if values.get("cqi", 0.0) < 0:
            del values["cqi"]
        if 0 <= level <= 31:
            values["rssi_dbm"] = 2.0 * level - 113.0
    elif 0 <= numbers[_GSM] <= 31:
        values = {"dbm": 2.0 * numbers[_GSM] - 113.0}
    return values
