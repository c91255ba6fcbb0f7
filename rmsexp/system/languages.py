"""Codes of languages in any spelling: zh, ZH, zh_CN, zh-Hans, zho, chi and cmn all stand for Chinese, ``zh``."""

from __future__ import annotations

import re

# ISO 639: the code of two letters, and those of three letters for the same language
ISO_639 = """
aa=aar ab=abk ae=ave af=afr ak=aka am=amh an=arg ar=ara as=asm av=ava ay=aym az=aze ba=bak be=bel bg=bul bi=bis bm=bam
bn=ben bo=bod=tib br=bre bs=bos ca=cat ce=che ch=cha co=cos cr=cre cs=ces=cze cu=chu cv=chv cy=cym=wel da=dan de=deu=ger
dv=div dz=dzo ee=ewe el=ell=gre en=eng eo=epo es=spa et=est eu=eus=baq fa=fas=per ff=ful fi=fin fj=fij fo=fao fr=fra=fre
fy=fry ga=gle gd=gla gl=glg gn=grn gu=guj gv=glv ha=hau he=heb hi=hin ho=hmo hr=hrv ht=hat hu=hun hy=hye=arm hz=her
ia=ina id=ind ie=ile ig=ibo ii=iii ik=ipk io=ido is=isl=ice it=ita iu=iku ja=jpn jv=jav ka=kat=geo kg=kon ki=kik kj=kua
kk=kaz kl=kal km=khm kn=kan ko=kor kr=kau ks=kas ku=kur kv=kom kw=cor ky=kir la=lat lb=ltz lg=lug li=lim ln=lin lo=lao
lt=lit lu=lub lv=lav mg=mlg mh=mah mi=mri=mao mk=mkd=mac ml=mal mn=mon mr=mar ms=msa=may mt=mlt my=mya=bur na=nau nb=nob
nd=nde ne=nep ng=ndo nl=nld=dut nn=nno no=nor nr=nbl nv=nav ny=nya oc=oci oj=oji om=orm or=ori os=oss pa=pan pi=pli
pl=pol ps=pus pt=por qu=que rm=roh rn=run ro=ron=rum ru=rus rw=kin sa=san sc=srd sd=snd se=sme sg=sag sh=hbs si=sin
sk=slk=slo sl=slv sm=smo sn=sna so=som sq=sqi=alb sr=srp ss=ssw st=sot su=sun sv=swe sw=swa ta=tam te=tel tg=tgk th=tha
ti=tir tk=tuk tl=tgl tn=tsn to=ton tr=tur ts=tso tt=tat tw=twi ty=tah ug=uig uk=ukr ur=urd uz=uzb ve=ven vi=vie vo=vol
wa=wln wo=wol xh=xho yi=yid yo=yor za=zha zh=zho=chi zu=zul
"""
# the usual code of a language, and codes of its standard variety, former codes, and cz, which Moses has for Czech
OTHERS = """
ar=arb az=azj cs=cz et=ekk fa=pes=prs gn=gug he=iw hr=scr id=in jv=jw ku=kmr lv=lvs mg=plt mn=khk ms=zsm ne=npi or=ory
ps=pbt ro=mo=mol sq=als sr=scc sw=swh tl=fil uz=uzn yi=ji=ydd zh=cmn
"""
LANGUAGES = {code: names[0] for entry in (ISO_639 + OTHERS).split() for names in [entry.split("=")] for code in names}
# Moses and others know these by codes of three letters; the first are written without spaces between words
WITHOUT_SPACES = frozenset(("bo", "dz", "ii", "km", "lo", "my", "th", "kht", "mnw", "nod", "shn", "tts"))
CHINESE = frozenset(("zh", "gan", "hak", "hsn", "lzh", "nan", "wuu", "yue"))  # languages in Chinese characters
CODE = re.compile(r"([a-z]{2,3})(?![^\W_])")  # a word of letters, at the end or before a sign such as - or _


def language(code: str, key: str = "") -> str:
    """Return the language of a code without region, script and case: by two letters, or by three if it has no two.

    A code of three letters that is not in the lists is returned in small letters. ``key``: the option, for the message.

    Raises: ValueError if it is no code of a language.
    """
    match = CODE.match(code.strip().lower())
    if match is None or (len(match[1]) == 2 and match[1] not in LANGUAGES):
        raise ValueError(
            f"{key}{'=' * bool(key)}{code} is no language code; use one of ISO 639, such as en, de, zh or ja"
        )
    return LANGUAGES.get(match[1], match[1])
