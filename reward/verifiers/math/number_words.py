"""Reads number words as digits: `eighteen`, `three hundred and five`, `two thirds`, `one and a
half`, `half a dozen`, and Chinese numerals (`十八个`). Linear time.
"""

import re
from decimal import Decimal

_ONES = re.findall(
    r"\w+",
    """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen""",
)
_TENS = re.findall(r"\w+", "twenty thirty forty fifty sixty seventy eighty ninety")
_VALUES = {word: value for value, word in enumerate(_ONES)}
_VALUES |= {word: 10 * value for value, word in enumerate(_TENS, start=2)}
_SCALES = {
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
# Words of further scales and of other languages, by their value.
_WORDS = {
    12: "dozen dutzend docena docenas douzaine douzaines дюжина дюжины дюжин",
    10**2: "hundert hundra 百 백",
    10**3: "тысяча тысячи тысяч тыс tausend mille mila mil tusen duizend tysiąc tysiące tysięcy"
    " tys tisíc nghìn ngàn ribu bin ألف آلاف هزار हज़ार हजार 千 천 พัน",
    10**4: "万 萬 만 หมื่น",
    10**5: "lakh लाख แสน",
    10**6: "миллион миллиона миллионов млн millionen millions millón millones milione milioni"
    " milhão milhões miljoen miljoner miljon milion miliony milionów triệu juta milyon مليون ملايين"
    " मिलियन ล้าน",
    10**7: "crore करोड़ करोड",
    10**8: "亿 億 억",
    10**9: "миллиард миллиарда миллиардов млрд milliarde milliarden milliard milliards miliardo"
    " miliardi bilhão bilhões miljard miliard miliardy miliardów tỷ miliar milyar مليار",
    10**12: "billionen billones триллион триллиона триллионов 兆 조",
}
SCALES = _SCALES | {word: value for value, words in _WORDS.items() for word in words.split()}
"""Words that multiply the number before them."""
_PARTS = {"half": 2, "halves": 2, "quarter": 4, "quarters": 4} | {
    ordinal + ending: value
    for value, ordinal in enumerate(
        ("third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"), start=3
    )
    for ending in ("", "s")
}
_PARTS |= {"twelfth": 12, "hundredth": 100, "thousandth": 1000}
_PARTS |= {"twelfths": 12, "hundredths": 100, "thousandths": 1000}
_WORD = "|".join([*_VALUES, *_SCALES])
_RUN = re.compile(
    rf"(?<![\w\\])(?:a\s+(?:{'|'.join(_SCALES)})|{'|'.join(_VALUES)})\b"
    rf"(?:(?:\s+and\s+|[\s-]+)(?:{_WORD})\b)*",
    re.IGNORECASE,
)
_FRACTION = re.compile(
    rf"(?<![\w\\./])(?:(?P<whole>\d+)\s+and\s+)?(?P<top>an?|\d+)[\s-]+(?P<part>{'|'.join(_PARTS)})\b"
    r"(?!\s+of\b)",
    re.IGNORECASE,
)
_HALF = re.compile(r"^\W*half\W*$", re.IGNORECASE)
_SIGN = re.compile(r"\b(?:minus|negative)\s+(?=\d)", re.IGNORECASE)
_HAN_VALUES = {sign: value for value, sign in enumerate("零一二三四五六七八九")} | {
    "〇": 0,
    "两": 2,
}
_HAN_SCALES = {"十": 10, "百": 100, "千": 10**3, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
# The numeral must be the whole text, but for a measure word: many other words begin with a numeral.
_HAN_NUMERAL = f"[{''.join([*_HAN_VALUES, *_HAN_SCALES])}]{{1,20}}"
_HAN_END = r"(?=です|である|\W*$)"
_HAN = re.compile(
    rf"^([负負]?)(百分之)?({_HAN_NUMERAL})(?:点([{''.join(_HAN_VALUES)}]{{1,20}}))?"
    r"(?=(?:[个個只隻本元块塊天年人岁歳歲次条張张つ名位页頁円度倍枚匹台杯间間种種棵朵头辆件套瓶颗米克升秒]"
    r"|小[时時]|分[钟鐘間]|公[里斤顷]|[千厘毫]米|千克|(?:平方|立方)[厘分]?米|時間|通り)?"
    rf"{_HAN_END})"
)
_HAN_FRACTION = re.compile(rf"^(\d+|{_HAN_NUMERAL})分之?の?(\d+|{_HAN_NUMERAL}){_HAN_END}")
_HAN_HALF = re.compile(rf"^({_HAN_NUMERAL})[个個]半|^一?半{_HAN_END}")
_DOZEN = re.compile(r"\b(half\s+)?an?\s+dozen\b", re.IGNORECASE)
_HALF_SCALE = re.compile(rf"\bhalf\s+an?\s+(?={'|'.join(_SCALES)})", re.IGNORECASE)
# `1 hundred and 5`.
_HUNDREDS = re.compile(
    r"(?<![\w.,/^])(\d{1,3}) hundred(?: and)? (\d\d?)(?![\w.,/]*\d)", re.IGNORECASE
)
_SCALED = re.compile(
    rf"(?<![\w.,/^])(\d{{1,15}}(?:,\d{{3}})*(?:\.\d{{1,9}})?)[\s-]+({'|'.join(SCALES)})(?![^\W\d_])",
    re.IGNORECASE,
)


def words_as_digits(text: str) -> str:
    """Return `text` with digits for its number words."""
    text = _RUN.sub(_digits, _HALF_SCALE.sub("0.5 ", text))
    text = _HAN_HALF.sub(lambda match: f"{_han_value(match[1] or '零')}.5", text)
    text = _HAN_FRACTION.sub(_han_fraction, _HAN.sub(_han_number, text))
    text = _HALF.sub("1/2", text)
    text = _DOZEN.sub(lambda match: "6" if match[1] else "12", text)
    text = _HUNDREDS.sub(lambda match: str(int(match[1]) * 100 + int(match[2])), text)
    text = scaled(text)
    return _SIGN.sub("-", _FRACTION.sub(_fraction, text))


def scaled(text: str) -> str:
    """Return `text` with the products for `5 million` and `5 Millionen`."""
    return _SCALED.sub(_scaled, text)


def _scaled(match: re.Match[str]) -> str:
    value = Decimal(match[1].replace(",", "")) * SCALES[match[2].lower()]
    return f"{value.normalize():f}"


def _han_number(match: re.Match[str]) -> str:
    decimals = "".join(str(_HAN_VALUES[sign]) for sign in match[4] or "")
    number = f"{_han_value(match[3])}.{decimals}" if decimals else f"{_han_value(match[3])}"
    return ("-" if match[1] else "") + number + ("%" if match[2] else "")


def _han_fraction(match: re.Match[str]) -> str:
    bottom, top = (int(part) if part.isdigit() else _han_value(part) for part in match.groups())
    return f"{top}/{bottom}"


def _han_value(numeral: str) -> int:
    total = section = current = 0
    for sign in numeral:
        scale = _HAN_SCALES.get(sign)
        if scale is None:
            current = current * 10 + _HAN_VALUES[sign]
        elif scale < 10**4:
            section += (current or 1) * scale
            current = 0
        else:
            total += (section + current) * scale
            section = current = 0
    return total + section + current


def _digits(match: re.Match[str]) -> str:
    """Return the run as digits. Words that form no single number (`two and three`) become several
    numbers."""
    total = current = 0
    last = 10**15
    for word in re.findall(r"[a-z]+", match[0].lower()):
        if word in ("a", "and"):
            continue
        if word in _SCALES:
            scale = _SCALES[word]
            if scale == 100:
                current = max(current, 1) * scale
            else:
                total += max(current, 1) * scale
                current = 0
            last = scale
            continue
        value = _VALUES[word]
        limit = last if last >= 20 else 0
        if (value >= limit and limit != 10**15) or (current % 10 and last < 100):
            return re.sub(r"[A-Za-z]+", lambda word: str(_value(word[0])), match[0])
        current += value
        last = value if value >= 20 else 1
    return str(total + current)


def _value(word: str) -> int | str:
    lower = word.lower()
    return _VALUES.get(lower, _SCALES.get(lower, word))


def _fraction(match: re.Match[str]) -> str:
    whole = int(match["whole"] or 0)
    top = 1 if match["top"].lower().startswith("a") else int(match["top"])
    bottom = _PARTS[match["part"].lower()]
    return f"{whole * bottom + top}/{bottom}"
