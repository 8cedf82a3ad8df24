//! Memory in every script: what was saved, and what was said in a conversation, is found in other words and forms of
//! the same language, and told to a turn of another task; what was never said is not. All of it is in one memory,
//! among much else, and is found again after a kill.

use std::collections::HashSet;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::http::path_segment;
use crate::support::synthetic_export::SyntheticExport;
use crate::support::turn::of_kind;
use crate::support::{EngineFixture, eventually};

/// What the engine's log says of a turn whose search took too long, as on a busy machine.
const NOT_SEARCHED: &str = "Memory could not be searched";

/// What the names of the tasks in which something is asked begin with.
const ASKING: &str = "asking ";

/// What a person who writes one language has the engine know, and asks.
struct Language {
    name: &'static str,
    /// A fact that is saved, and a question about it.
    saved: (&'static str, &'static str),
    /// A fact that is told in a conversation, a question about it, and the words of the fact that a search marks.
    told: (&'static str, &'static str, &'static [&'static str]),
    /// A question about something that nobody ever mentioned.
    unknown: &'static str,
}

const LANGUAGES: &[Language] = &[
    Language {
        name: "simplified Chinese",
        saved: ("我养了一只猫，它叫咪咪。", "我家的猫叫什么名字？"),
        told: ("下个月我们搬到杭州的新公寓。", "新公寓在哪个城市？", &["新公寓"]),
        unknown: "大象喜欢吃苹果吗？",
    },
    Language {
        name: "traditional Chinese",
        saved: ("圖書館早上九點開門。", "圖書館幾點開門？"),
        told: ("我最愛的音樂是爵士樂。", "你知道我喜歡什麼音樂嗎？", &["音樂"]),
        unknown: "鯨魚游泳很快嗎？",
    },
    Language {
        name: "Japanese",
        saved: ("来週の会議は水曜日です。", "会議は何曜日ですか"),
        told: ("おいしいラーメン屋は駅前にあります。", "ラーメンの店はどこですか", &["ラーメン"]),
        unknown: "ひこうきの切符はいくら？",
    },
    Language {
        name: "Korean",
        saved: ("우리 고양이의 이름은 나비예요.", "고양이는 이름이 뭐예요?"),
        told: ("친구와 서울에서 저녁을 먹었어요.", "서울의 저녁은 어땠나요?", &["서울에서", "저녁을"]),
        unknown: "코끼리가 바나나를 좋아할까?",
    },
    Language {
        name: "Thai",
        saved: ("สุนัขของฉันชื่อมะลิ", "สุนัขตัวนั้นชื่ออะไร"),
        told: ("ฉันชอบร้านกาแฟใกล้สถานี", "ร้านกาแฟอยู่ตรงไหน", &["ร้านกาแฟ"]),
        unknown: "ปูเป็นสีแดง",
    },
    Language {
        name: "Arabic",
        saved: ("موعدي مع طبيب الأسنان يوم الخميس.", "متى موعد طبيب الأسنان؟"),
        told: ("اشتريت سيارتي الزرقاء من دبي.", "أين السيارة الزرقاء؟", &["سيارتي", "الزرقاء"]),
        unknown: "هل تطير الفيلة؟",
    },
    Language {
        name: "Hebrew",
        saved: ("אחותי גרה בחיפה.", "איפה גרה אחותי?"),
        told: ("שני הכלבים שלי ישנים בגינה.", "איפה ישן הכלב?", &["הכלבים", "ישנים"]),
        unknown: "מתי יורד שלג?",
    },
    Language {
        name: "Hindi",
        saved: ("मेरा भाई जयपुर शहर में है।", "मेरे भाई का शहर कौन सा है?"),
        told: ("मेरी दोनों बिल्लियाँ छत पर सोती हैं।", "बिल्ली कहाँ सोती है?", &["बिल्लियाँ", "सोती"]),
        unknown: "हाथी क्या खाता है?",
    },
    Language {
        name: "Russian",
        saved: ("Ключи от дачи лежат под ковриком.", "Где ключ от нашей дачи?"),
        told: ("Мы посадили яблони за старым забором.", "Какая яблоня у забора?", &["яблони", "забором"]),
        unknown: "Почём билеты в цирк?",
    },
    Language {
        name: "German",
        saved: ("Der Haustürschlüssel liegt unter dem Blumentopf.", "Wo ist der Schlüssel?"),
        told: (
            "Die Wohnungsübergabe ist am Freitag um zehn.",
            "Wann ist die ÜBERGABE?",
            &["Wohnungsübergabe"],
        ),
        unknown: "Welche Raumschiffe fliegen zum Mond?",
    },
    Language {
        name: "Turkish",
        saved: ("İstanbul'daki otelimizin adı Pera.", "ISTANBUL otelinin adı ne?"),
        told: ("Kızım Işıl cumartesi piyano çalıyor.", "IŞIL ne zaman piyano çalacak?", &["Işıl", "piyano"]),
        unknown: "Fillerin yuvası nerede?",
    },
    Language {
        name: "emoji",
        saved: ("Ines brought the 🎂 yesterday.", "Who came with a 🎂?"),
        told: ("🎉 Boris answered with 👍🏽 to the offer.", "Who sent a 👍🏿?", &["👍🏽"]),
        unknown: "Where is the 🚀?",
    },
    Language {
        name: "mixed scripts",
        saved: ("Projekt 青龍 heißt intern Nightjar.", "What is Nightjar 青龍 about?"),
        told: (
            "我们用 Kubernetes 部署 payment-gateway 服务。",
            "payment gateway 的部署方式？",
            &["部署", "payment", "gateway"],
        ),
        unknown: "Which 白皮书 mentions quasars?",
    },
];

impl Language {
    /// The task in which its fact is told.
    fn task(&self) -> String {
        format!("told in {}", self.name)
    }

    /// What the endpoints do not find of its facts by their questions, and find by that about something else.
    async fn wrongly_found(&self, fixture: &EngineFixture) -> Vec<String> {
        let Self { saved: (saved, about_saved), told: (told, about_told, marked), unknown, .. } = self;
        let mut wrong = Vec::new();
        let mut check = |is_right: bool, found: &[Value], question: &str| {
            if !is_right {
                wrong.push(format!("{}: {question} finds {}", self.name, json!(found)));
            }
        };
        let found = known(fixture, about_saved).await;
        check(found.first().is_some_and(|found| found["content"] == *saved), &found, about_saved);

        let found = remembered(fixture, about_saved).await;
        let first = found.iter().find(|found| found["kind"] == "knowledge");
        check(first.is_some_and(|found| found["content"] == *saved), &found, about_saved);

        let found = remembered(fixture, about_told).await;
        let first = found.iter().find(|found| found["kind"] == "message");
        let is_told = |found: &Value| {
            found["task_id"] == self.task() && found["content"].as_str().unwrap().contains(told)
        };
        check(first.is_some_and(is_told), &found, about_told);

        let found = said(fixture, about_told).await;
        let is_told = |found: &Value| {
            (&found["task_id"], &found["role"]) == (&json!(self.task()), &json!("user"))
                && found["snippet"]["text"] == *told
                && marked_parts(&found["snippet"]) == *marked
        };
        check(found.first().is_some_and(is_told), &found, about_told);

        for found in
            [known(fixture, unknown).await, remembered(fixture, unknown).await, said(fixture, unknown).await]
        {
            check(found.is_empty(), &found, unknown);
        }
        wrong
    }

    /// What a turn of another task is not told of its facts with their questions, and is told with that about something
    /// else.
    async fn wrongly_recalled(&self, fixture: &EngineFixture) -> Vec<String> {
        let Self { saved: (saved, about_saved), told: (told, about_told, _), unknown, .. } = self;
        let has_fact = |items: &[Value], kind: &str, fact: &str| {
            let has_fact =
                |item: &Value| item["kind"] == kind && item["content"].as_str().unwrap().contains(fact);
            items.iter().any(has_fact) && fixture.last_messages().0.contains(fact)
        };
        let mut wrong = Vec::new();
        let mut check = |is_right: bool, items: &[Value], question: &str| {
            if !is_right {
                wrong.push(format!("{}: {question} recalls {}", self.name, json!(items)));
            }
        };
        let items = recalled(fixture, unknown).await;
        check(items.is_empty(), &items, unknown);
        let items = recalled(fixture, about_saved).await;
        check(has_fact(&items, "knowledge", saved), &items, about_saved);
        let items = recalled(fixture, about_told).await;
        check(has_fact(&items, "message", told), &items, about_told);
        wrong
    }
}

/// What a search in the knowledge finds.
async fn known(fixture: &EngineFixture, question: &str) -> Vec<Value> {
    let body = json!({"query": question});
    let found = fixture.engine.post("/memory/knowledge/search", &body).await.assert_ok("results:array");
    found["results"].as_array().unwrap().clone()
}

/// What a search in all of memory finds.
async fn remembered(fixture: &EngineFixture, question: &str) -> Vec<Value> {
    let found = fixture.engine.rpc_result("memory.search", json!({"query": question})).await;
    found["results"].as_array().unwrap().clone()
}

/// What a search in the conversations finds.
async fn said(fixture: &EngineFixture, question: &str) -> Vec<Value> {
    let path = format!("/conversations/search?q={}", path_segment(question));
    let found = fixture.engine.get(&path).await.assert_ok("results:array");
    found["results"].as_array().unwrap().clone()
}

/// The marked parts of a snippet, whose places are numbers of characters.
fn marked_parts(snippet: &Value) -> Vec<String> {
    let text: Vec<char> = snippet["text"].as_str().unwrap().chars().collect();
    let place = |mark: &Value, end: &str| usize::try_from(mark[end].as_u64().unwrap()).unwrap();
    let marks = snippet["matches"].as_array().unwrap().iter();
    marks.map(|mark| text[place(mark, "start")..place(mark, "end")].iter().collect()).collect()
}

/// What a turn of a new task is told with this message. A turn whose search the engine gave up, as it does on a busy
/// machine, does not count.
async fn recalled(fixture: &EngineFixture, question: &str) -> Vec<Value> {
    let given_up = || fixture.program.output().matches(NOT_SEARCHED).count();
    eventually("memory is searched in time", async || {
        let before = given_up();
        let task = format!("{ASKING}{}", fixture.model_calls());
        let events = fixture.engine.run_turn_with(&direct_message(&task, question)).await;
        let updates = of_kind(&events, "working_memory_update");
        let mut updates = updates.into_iter().filter(|event| event.data["key"] == "recalled");
        let items = updates.next().map(|event| event.data["value"].as_array().unwrap().clone());
        assert!(updates.next().is_none(), "told twice: {events:?}");
        (given_up() == before).then(|| items.unwrap_or_default())
    })
    .await
}

/// Deletes the tasks in which something was asked, so that no later search finds the questions themselves.
async fn forget_questions(fixture: &EngineFixture) {
    let (tasks, _) = fixture.engine.tasks("?limit=1000").await;
    let asking = tasks.iter().map(|task| task["task_id"].as_str().unwrap());
    let asking: Vec<&str> = asking.filter(|task| task.starts_with(ASKING)).collect();
    assert!(asking.len() >= 3 * LANGUAGES.len(), "{asking:?}");
    join_all(asking.into_iter().map(async |task| {
        let path = format!("/tasks/{}", path_segment(task));
        fixture.engine.delete(&path).await.assert_ok("status:text");
    }))
    .await;
}

#[tokio::test]
async fn what_is_said_in_any_script_is_found_and_recalled_among_all_the_others_and_after_a_kill() {
    let names: HashSet<&str> = LANGUAGES.iter().map(|language| language.name).collect();
    assert_eq!(names.len(), LANGUAGES.len());
    let fixture = EngineFixture::new([]).await;
    let much_else: Value =
        serde_json::from_str(&SyntheticExport::with_tasks(4).with_short_messages().document()).unwrap();
    let imported = fixture.engine.post("/memory/import", &much_else).await;
    imported.assert_ok("status:text mode:text counts:object");
    join_all(LANGUAGES.iter().map(async |language| {
        let saved = fixture.engine.post("/memory/knowledge", &json!({"content": language.saved.0})).await;
        assert_eq!(saved.status, 200, "{}", saved.body);
        fixture.engine.run_turn(&language.task(), language.told.0).await;
    }))
    .await;

    let wrong = async |fixture: &EngineFixture| {
        let mut wrong = Vec::new();
        for language in LANGUAGES {
            wrong.extend(language.wrongly_found(fixture).await);
            wrong.extend(language.wrongly_recalled(fixture).await);
        }
        wrong
    };
    assert_eq!(wrong(&fixture).await, [""; 0]);
    forget_questions(&fixture).await;
    let fixture = fixture.kill_and_start().await;
    assert_eq!(wrong(&fixture).await, [""; 0], "after a kill");
}
