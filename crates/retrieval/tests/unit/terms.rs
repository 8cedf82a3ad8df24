//! A word meets itself in every script, however it is written.

use proptest::prelude::*;

use super::*;

fn indexed(text: &str) -> Vec<String> {
    index_text(text).split(' ').map(str::to_owned).collect()
}

/// Whether a message has a word of the question.
fn is_found(question: &str, message: &str) -> bool {
    let indexed = indexed(message);
    content_words(question).iter().flat_map(|word| &word.terms).any(|term| indexed.contains(term))
}

fn assert_meets(pairs: &[(&str, &str)]) {
    for (question, message) in pairs {
        assert!(
            is_found(question, message),
            "{question} {:?}: {:?}",
            content_words(question),
            indexed(message)
        );
    }
}

fn asked(question: &str) -> Vec<String> {
    content_words(question).into_iter().flat_map(|word| word.terms).collect()
}

#[test]
fn stop_words_are_folded_and_once_in_a_list() {
    let words = &*crate::stop_words::WORDS;
    for (word, list) in words {
        assert_eq!(fold(word), *word);
        assert!(contains(*list, word));
    }
    assert!(words.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(!contains(List::German, "katze") && !contains(List::German, ""));
}

#[test]
fn english_words_meet_in_any_inflection() {
    assert_meets(&[
        ("deployments", "We DEPLOY on Friday"),
        ("Who was running?", "I ran, then they run"),
        ("cafés", "the cafe at the corner"),
        ("naïve", "a naive idea"),
        ("dog's bowl", "two dogs"),
    ]);
    assert_eq!(asked("What did you say about the Lisbon trip?"), ["lisbon", "trip"]);
    assert_eq!(asked("What is it that you do?"), [""; 0]);
    assert!(!all_words("What is it that you do?").is_empty());
}

#[test]
fn chinese_is_cut_into_pairs_and_characters() {
    assert_meets(&[
        ("咖啡馆在哪里？", "我们昨天去了那家咖啡馆"),
        ("我的猫叫什么名字", "我养了一只猫，它很可爱"),
        ("猫", "我养了一只猫"),
        ("圖書館幾點開門？", "我每天去圖書館讀書"),
        ("你喜歡什麼音樂", "我最愛的音樂是爵士"),
        ("ＡＢＣ公司", "abc公司的合同"),
    ]);
    assert!(!is_found("大象", "我养了一只猫"));
    assert_eq!(asked("我的咖啡"), ["咖啡"]);
    // A character is asked by itself where nothing but grammar is beside it.
    assert_eq!(asked("猫"), ["猫"]);
    assert_eq!(asked("我的猫在哪里"), ["猫"]);
    assert_eq!(asked("我的猫叫什么名字"), ["猫叫", "猫", "名字"]);
    // Simplified and traditional characters are different ones.
    assert!(!is_found("图", "圖"));
}

#[test]
fn japanese_is_cut_into_pairs_without_its_particles() {
    assert_meets(&[
        ("猫の名前は何ですか", "うちの猫はタマという名前です"),
        ("ラーメン屋", "昨日のﾗｰﾒﾝは美味しかった"),
        ("東京タワー", "東京タワーに登りました"),
        ("ねこ", "ねこが好き"),
        ("が\u{3099}く", "か\u{3099}\u{3099}く が\u{3099}く"),
    ]);
    assert_eq!(asked("猫の名前は何ですか"), ["猫", "名前"]);
    assert!(!is_found("ひこうき", "うちの猫はタマです"));
}

#[test]
fn korean_words_meet_below_their_particles() {
    assert_meets(&[
        ("고양이 이름이 뭐예요?", "우리 고양이는 나비라고 해요"),
        ("서울에서", "서울은 넓다"),
        ("집", "집에서 쉬었다"),
        ("책을", "책이 많다"),
        ("한국어", "한국어를 배워요"),
    ]);
    assert!(!is_found("강아지", "우리 고양이는 나비라고 해요"));
}

#[test]
fn thai_lao_khmer_and_myanmar_are_cut_into_pairs() {
    assert_meets(&[
        ("ร้านกาแฟ", "เมื่อวานฉันไปร้านกาแฟใกล้บ้าน"),
        ("น้ำ", "ฉันดื่มน้ำ"),
        ("ຮ້ານກາເຟ", "ຂ້ອຍໄປຮ້ານກາເຟ"),
        ("កាហ្វេ", "ខ្ញុំចូលចិត្តកាហ្វេណាស់"),
        ("ကော်ဖီ", "ကျွန်တော်ကော်ဖီသောက်တယ်"),
    ]);
    assert!(!is_found("ช้าง", "กาแฟ"));
}

#[test]
fn arabic_words_meet_without_article_vowel_marks_and_tatweel() {
    assert_meets(&[
        ("أين السيارة؟", "اشتريت سيارتي أمس"),
        ("كِتَابٌ", "قرأت الكتـــاب"),
        ("المدرسة", "ذهبنا بالمدرسه"),
        ("والطبيب", "موعد للطبيب"),
        ("إسلام", "اسلام"),
        ("کتابی", "كتابي"),
        ("٢٠٢٤", "في عام 2024"),
    ]);
    assert!(!is_found("الطبيب", "اشتريت سيارتي أمس"));
}

#[test]
fn hebrew_words_meet_without_prefixes_and_niqqud() {
    assert_meets(&[
        ("איפה הכלב?", "יש לי שני כלבים"),
        ("שָׁלוֹם", "שלום"),
        ("בבית", "הבית גדול"),
        ("שולחן", "שולחנות"),
    ]);
    assert!(!is_found("חתול", "יש לי שני כלבים"));
}

#[test]
fn hindi_words_meet_in_any_inflection_and_keep_their_vowel_signs() {
    assert_meets(&[
        ("लड़कों का स्कूल", "वह लड़का आया"),
        ("किताबें", "मेरी किताब"),
        ("बिल्ली का नाम क्या है", "मेरी बिल्लियाँ"),
        ("२०२४", "2024"),
    ]);
    assert!(!is_found("काल", "कील"));
}

#[test]
fn russian_and_greek_words_meet_in_any_case() {
    assert_meets(&[
        ("собаку", "У меня есть СОБАКА"),
        ("ёлка", "елки"),
        ("синий", "синяя машина"),
        ("собаки", "собаку зовут Рекс"),
        ("ΣΚΎΛΟΣ", "ο σκύλος μου"),
        ("σκύλου", "οι σκύλοι"),
    ]);
    assert_eq!(asked("Как зовут мою собаку?").len(), 2);
}

#[test]
fn german_words_meet_in_any_inflection_spelling_and_compound() {
    assert_meets(&[
        ("Wo ist die Wohnung?", "Wir haben uns drei Wohnungen angesehen"),
        ("Wohnungen", "Wohnungen"),
        ("STRASSE", "Sie wohnt in der Hauptstraße"),
        ("strasse", "Straße"),
        ("Wann kommt die Verwaltung?", "Die Hausverwaltung hat sich nicht gemeldet"),
        ("Verwaltung", "Die Hausverwaltung hat sich nicht gemeldet"),
        ("Versicherung", "Ich habe meine Versicherungskarte verloren"),
        ("Wo ist meine Karte?", "Ich habe die Versicherungskarte verloren"),
        ("Zahnarzt", "Ich habe morgen einen Zahnarzttermin"),
        ("Termin", "Ich habe morgen einen Zahnarzttermin"),
        ("Haus", "Die Häuser sind alt und nicht schön"),
        ("Wie heißt Frau Müller?", "Das ist die Frau Mueller von der Post"),
    ]);
    assert!(!is_found("Wo ist die Katze?", "Ich habe die Versicherungskarte verloren"));
    // The German article and verb are English words of content.
    assert_eq!(asked("When did the captain die?"), ["captain", "die"]);
    assert_eq!(asked("Wo war die Katze?"), ["katz"]);
}

#[test]
fn turkish_has_two_letters_i() {
    assert_meets(&[
        ("İSTANBUL", "istanbul'da yaşıyorum"),
        ("ISPARTA", "ısparta"),
        ("ışık", "IŞIK ve ışıklar çok güzel"),
        ("Kitabım nerede ve ne zaman?", "bu kitaplar çok güzel"),
        ("Title", "TITLE"),
    ]);
}

#[test]
fn romance_slavic_and_nordic_words_meet_in_any_inflection() {
    assert_meets(&[
        ("¿Dónde están las canciones?", "Mi canción favorita es esta"),
        ("Où sont les chevaux ?", "le cheval est dans le pré avec nous"),
        ("Onde estão os cachorros?", "o meu cachorro não está em casa"),
        ("Dove sono i gatti?", "il mio gatto non è qui"),
        ("Gdzie jest mój samochód?", "nie ma samochodu i nie wiem co się stało"),
        ("Var är mina böcker?", "jag har en bok som är bra, böckerna är här"),
        ("l'amour", "amour"),
    ]);
}

#[test]
fn emoji_are_words() {
    assert_meets(&[
        ("🐶", "my dog 🐶🐶"),
        ("👍🏽", "👍"),
        ("❤️", "I ❤ Lisbon"),
        ("👩‍💻", "a 💻 and a 👩"),
        ("🇵🇹", "🇪🇸🇵🇹"),
    ]);
    assert!(!is_found("🇵🇪", "🇪🇸🇵🇹") && !is_found("🐱", "🐶"));
}

#[test]
fn identifiers_addresses_and_numbers_are_found_as_one_and_in_parts() {
    assert_meets(&[
        ("foo_bar", "call foo_bar()"),
        ("foobar", "call foo_bar()"),
        ("bar", "call foo_bar()"),
        ("ABC123", "ticket ABC-123"),
        ("e-mail", "an email"),
        ("jo@example.org", "write to <Jo@Example.ORG>."),
        ("example.org", "https://example.org/a/b?c=d"),
        ("3.14", "pi is 3.14."),
        ("1,000", "1000 euros"),
        ("10:30", "at 10:30"),
    ]);
    assert!(indexed("3.14").contains(&"3·14".to_owned()) && !indexed("3.14").contains(&"314".to_owned()));
}

#[test]
fn scripts_mix_in_one_text() {
    assert_meets(&[
        ("iPhone15", "新しいiPhone15を買った"),
        ("买", "我买了iPhone手机"),
        ("手机", "我买了iPhone手机"),
        ("Москва", "trip to Москву with 東京"),
        ("東京", "trip to Москву with 東京"),
        ("3월", "3월 5일에 만나요"),
    ]);
}

#[test]
fn what_is_too_long_is_cut_on_both_sides() {
    let long = "abcdefghij".repeat(100);
    assert_meets(&[(&long, &long)]);
    let many: Vec<String> = (0..1000).map(|n| format!("w{n}")).collect();
    assert_eq!(content_words(&many.join(" ")).len(), MAX_ASKED_WORDS);
}

proptest! {
    #[test]
    fn any_text_has_bounded_terms_that_a_trivial_tokenizer_takes_apart(
        text in "\\PC{0,200}|[\\x00-\\u{10ffff}]{0,60}"
    ) {
        for term in indexed(&text) {
            prop_assert!(term.len() <= MAX_TERM_BYTES);
            let is_token = |letter: char| {
                !letter.is_ascii() || letter.is_ascii_lowercase() || letter.is_ascii_digit()
            };
            prop_assert!(term.chars().all(is_token), "{term:?}");
        }
        let words = all_words(&text);
        prop_assert!(words.len() <= MAX_ASKED_WORDS);
        prop_assert!(words.iter().all(|word| !word.terms.is_empty()));
        let _ = content_words(&text);
    }

    #[test]
    fn folding_twice_is_folding_once(text in "[\\x00-\\u{10ffff}]{0,40}") {
        prop_assert_eq!(fold(&fold(&text)), fold(&text));
    }

    #[test]
    fn a_word_meets_itself_in_a_text_of_whatever_language(
        words in prop::collection::vec(
            "[a-zA-ZäöüßéñçşğıİàøłÅ]{1,12}|[А-яё]{1,9}|[א-ת]{1,8}|[ء-ي]{1,8}|[क-हािी]{1,8}",
            1..6,
        ),
        around in prop::sample::select(vec![
            "",
            "the of and to",
            "der die das und ist",
            "le la les est",
            "ve bu bir çok",
            "que el los de",
            "i w na się nie",
        ]),
    ) {
        let indexed = indexed(&format!("{around} {} {around}", words.join(" ")));
        for word in &words {
            for asked in all_words(word) {
                prop_assert!(asked.terms.iter().any(|term| indexed.contains(term)), "{asked:?} {indexed:?}");
            }
        }
    }

    #[test]
    fn a_text_is_found_by_itself_in_whatever_normalization(
        text in "([a-zA-ZäöüßéñçşğıİА-яα-ωא-תء-يऀ-ह가-힣一-龥ぁ-んァ-ヶก-ฮ0-9 ]|[.@_-]){1,40}"
    ) {
        let composed = index_text(&text);
        prop_assert_eq!(&composed, &index_text(&text.nfd().collect::<String>()));
        prop_assert_eq!(&composed, &index_text(&text.nfkc().collect::<String>()));
        let indexed = indexed(&text);
        for word in all_words(&text) {
            prop_assert!(word.terms.iter().all(|term| indexed.contains(term)), "{word:?} {indexed:?}");
        }
    }
}
