use proptest::prelude::*;

use super::*;

/// Small talk and questions that one answer settles, with their language.
const SMALL_TALK: [(&str, &str); 26] = [
    ("en", "Hello!"),
    ("en", "Good morning! How are you today? I slept badly, but the coffee is helping. What's up?"),
    ("en", "Thanks a lot, that was very helpful, I will try it tomorrow."),
    ("en", "What is 3.14 * 12,5 and why is pi approx. 3.14159?"),
    ("en", "Who wrote \"The Magic Mountain\", and when was it published?"),
    ("en", "👍👍👍"),
    ("en", ""),
    ("de", "Guten Morgen! Wie geht es dir heute? Danke für gestern."),
    ("de", "Wie wird das Wetter am Donnerstag in Hamburg, eher sonnig oder regnerisch?"),
    ("fr", "Bonjour, merci beaucoup pour ton aide, c'était parfait !"),
    ("es", "¿Qué hora es en Lima? ¿Y en Tokio?"),
    ("ru", "Привет! Как дела? Спасибо, что помог вчера."),
    ("uk", "Дякую, все чудово. Яка сьогодні погода у Львові?"),
    ("el", "Καλημέρα! Τι κάνεις; Όλα καλά εδώ, ευχαριστώ."),
    ("ar", "صباح الخير، كيف حالك اليوم؟ شكرا جزيلا على المساعدة."),
    ("fa", "سلام، حالت چطوره؟ ممنون بابت دیروز."),
    ("he", "בוקר טוב, מה שלומך? תודה רבה על העזרה."),
    ("hi", "नमस्ते! आप कैसे हैं? कल की मदद के लिए धन्यवाद।"),
    ("zh", "你好！今天天气怎么样？谢谢你昨天的帮助。"),
    ("zh", "长江有多长？"),
    ("ja", "おはようございます。元気ですか？昨日はありがとう。"),
    ("ko", "안녕하세요! 오늘 기분이 어때요? 어제는 고마웠어요."),
    ("th", "สวัสดีครับ วันนี้เป็นอย่างไรบ้าง ขอบคุณมาก"),
    ("tr", "Günaydın! Bugün nasılsın? Dün için teşekkürler."),
    ("fi", "Hyvää huomenta! Mitä kuuluu? Kiitos eilisestä."),
    ("am", "ሰላም። እንዴት ነህ? አመሰግናለሁ።"),
];

/// Requests of several parts, with their language.
const SEVERAL_PARTS: [(&str, &str); 21] = [
    (
        "en",
        "Research solar panel prices in Spain, compare the three largest suppliers, and write a two-page \
         report with a recommendation.",
    ),
    ("en", "Please:\n- book a table\n- invite Ann\n- remind me on Friday"),
    ("en", "1. Read the minutes.\n2. List the open points."),
    ("en", "First (1) find the bug, then (2) fix it."),
    ("en", "Merge the tables sales.csv and costs.xlsx by their month."),
    ("en", "Compare https://a.example/plans and https://b.example/plans for me."),
    (
        "de",
        "Untersuche die Preise von Solarmodulen in Spanien, vergleiche die drei größten Anbieter und schreibe \
         dann einen zweiseitigen Bericht, den ich meinem Chef geben kann.",
    ),
    (
        "fr",
        "Recherche les prix des panneaux solaires en Espagne, compare les trois plus grands fournisseurs, puis \
         rédige un rapport de deux pages avec une recommandation.",
    ),
    (
        "es",
        "Investiga los precios de los paneles solares, compara los tres mayores proveedores, y escribe después \
         un informe de dos páginas con una recomendación.",
    ),
    (
        "ru",
        "Изучи цены на солнечные панели в Испании, сравни трёх крупнейших поставщиков, а затем напиши отчёт на \
         две страницы с рекомендацией.",
    ),
    (
        "el",
        "Ερεύνησε τις τιμές των φωτοβολταϊκών στην Ισπανία, σύγκρινε τους τρεις μεγαλύτερους προμηθευτές, και \
         γράψε μια αναφορά δύο σελίδων.",
    ),
    (
        "ar",
        "ابحث عن أسعار الألواح الشمسية في إسبانيا، ثم قارن بين أكبر ثلاثة موردين، وبعد ذلك اكتب تقريرا من \
         صفحتين مع توصية واضحة لمديري.",
    ),
    (
        "he",
        "חקור את מחירי הפאנלים הסולאריים בספרד, השווה בין שלושת הספקים הגדולים ביותר, ואחר כך כתוב דוח של שני \
         עמודים עם המלצה ברורה עבור המנהל.",
    ),
    (
        "hi",
        "स्पेन में सौर पैनलों की कीमतों का पता लगाओ, फिर तीन सबसे बड़े आपूर्तिकर्ताओं की तुलना करो, और अंत में दो पन्नों की एक \
         रिपोर्ट लिखो जिसमें सिफारिश हो।",
    ),
    ("zh", "请先研究西班牙太阳能电池板的价格，然后比较三家最大的供应商，最后写一份两页的报告。"),
    ("zh", "请做：①订一张桌子②邀请安娜"),
    ("zh", "把data.csv转换成report.xlsx，并且检查里面的每一行。"),
    (
        "ja",
        "まずスペインの太陽光パネルの価格を調べ、次に大手三社を比較し、最後に二ページの報告書を書いてください。",
    ),
    (
        "ko",
        "먼저 스페인의 태양광 패널 가격을 조사하고, 그다음 가장 큰 세 공급업체를 비교하고, 마지막으로 두 쪽짜리 \
         보고서를 작성해 주세요.",
    ),
    (
        "th",
        "ช่วยค้นหาราคาแผงโซลาร์เซลล์ในประเทศสเปน แล้วเปรียบเทียบผู้จำหน่ายรายใหญ่สามราย จากนั้นเขียนรายงานสองหน้าพร้อมคำแนะนำ",
    ),
    (
        "tr",
        "İspanya'daki güneş paneli fiyatlarını araştır, en büyük üç tedarikçiyi karşılaştır, sonra da önerilerinle \
         birlikte iki sayfalık bir rapor yaz.",
    ),
];

#[test]
fn small_talk_is_answered_at_once_and_work_of_several_parts_is_planned() {
    for (language, message) in SMALL_TALK {
        assert!(!is_worth_planning(message, 0, false), "{language}: {message}");
        assert!(!is_worth_planning(message, 0, true), "{language}: {message}");
    }
    for (language, message) in SEVERAL_PARTS {
        assert!(is_worth_planning(message, 0, false), "{language}: {message}");
    }
}

#[test]
fn a_remark_in_a_conversation_must_be_longer_than_a_first_message() {
    let remark = "That is good, but please use a friendlier tone in the greeting, and leave out the last \
                  sentence about the weather.";
    assert!(is_worth_planning(remark, 0, false));
    assert!(!is_worth_planning(remark, 0, true));
    assert!(is_worth_planning(&remark.repeat(3), 0, true));
    // Structure counts in any message.
    assert!(is_worth_planning("- shorter\n- friendlier", 0, true));
}

#[test]
fn a_question_about_an_attachment_is_none_and_work_with_attachments_is_one() {
    assert!(!is_worth_planning("What is in this picture?", 1, false));
    assert!(!is_worth_planning("", 1, false));
    assert!(is_worth_planning("What differs?", 2, false));
    let work = "Read the attached contract and tell me which of its clauses are unusual for a lease.";
    assert!(is_worth_planning(work, 1, true));
    assert!(!is_worth_planning(work, 0, false));
}

#[test]
fn numbers_times_and_dashes_make_no_list() {
    for text in ["12:30\n13:45", "3.5 km\n4.5 km", "-5\n-6", "well - yes\nno - never", "2026.\n2027."] {
        assert!(!is_worth_planning(text, 0, false), "{text}");
    }
    for text in ["1) a\n2) b", "１、北京\n２、上海", "• a\n• b", "* a\n* b", "٠١. ا\n٠٢. ب"]
    {
        assert!(is_worth_planning(text, 0, false), "{text}");
    }
}

proptest! {
    #[test]
    fn any_text_is_decided_and_more_attachments_never_make_it_worth_less(
        text in any::<String>(), attachments in 0_usize..4, continues: bool,
    ) {
        let worth = is_worth_planning(&text, attachments, continues);
        prop_assert!(!worth || is_worth_planning(&text, attachments + 1, continues));
        // What is worth a plan in a conversation is worth one at its beginning.
        prop_assert!(!is_worth_planning(&text, attachments, true) || is_worth_planning(&text, attachments, false));
    }
}
