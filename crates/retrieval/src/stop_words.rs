//! Words that say nothing about the subject of a question, in the languages that are written most.
//!
//! The lists are short on purpose: a frequent word weighs little by its frequency anyway. What they prevent is
//! that a rare form of a word of grammar outweighs a word of content in a small store. A list also tells its
//! language: a text is German if it has more words of the German list than of any other. Where a language has
//! no list, the frequencies alone decide.

use std::sync::LazyLock;

/// A list of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum List {
    English,
    German,
    French,
    Spanish,
    Portuguese,
    Italian,
    Dutch,
    Swedish,
    Polish,
    Turkish,
    /// Russian, with the most frequent words of Ukrainian.
    Russian,
    Arabic,
    Hebrew,
    Hindi,
    Korean,
    /// Chinese characters that are grammar wherever they stand alone: simplified, traditional, Japanese.
    CjkCharacters,
    /// Those of them that seldom are part of a word of content: a pair with one is grammar.
    CjkParticles,
    /// Pairs of characters that are grammar in Chinese or Japanese.
    CjkPairs,
}

/// The words of each list in the form that folding gives them, separated by spaces.
#[rustfmt::skip]
const LISTS: &[(List, &str)] = &[
    (List::English, "\
      a about after again all also am an and any anybody anyone anything are as at be because been before \
      being but by can could couldn d did didn do does doesn doing don done for from get go going got had \
      has have having he hello her here hey hi him his how i if in into is isn it its just know let like ll \
      m make many maybe me might mine more most much must my myself no not now of off ok on one only or \
      other our out over please re really recall remember remind s said same say shall she should so some \
      somebody someone something such t tell than thank thanks that the their them then there these they \
      thing things this those through to too up us ve very want was wasn we well were weren what when where \
      which while who whom whose why will with won would wouldn yes you your yours"),
    (List::German, "\
      aber als am an auch auf aus bei bin bis bist bitte da das dass dein dem den der des dich die diese \
      dieser dir du ein eine einem einen er es fur gibt habe haben hat hatte hier ich ihm ihr ihre im in ist \
      ja jetzt kann kein man mein meine meinen mich mir mit nach nicht noch nur oder sein sich sie sind so \
      uber um und uns unser von vor wann war waren warum was weil weisst welche wenn wer wie will wir \
      wird wo zu zum zur"),
    (List::French, "\
      a ai au avait avec avez avoir c ca ce ces cette comme comment d dans de des du elle est et ete etes eu \
      il ils j je l la le les m ma mais me mes moi mon n ne notre nous on ont ou oui par pas pour pourquoi qu \
      quand que quel quelle qui quoi s sais savez se si son sont suis sur t ta ton tu un une votre vous y"),
    (List::Spanish, "\
      a al como con cual cuando de del desde donde el en es esa eso esta estaba este esto estoy fue ha han \
      hay he hola la las lo los mas me mi mis muy no nos o para pero por porque que quien sabe sabes se sobre \
      son soy su sus tambien te tengo tiene tu un una uno y yo"),
    (List::Portuguese, "\
      a ao as com como da das de do dos e ela ele em esta estao este eu foi foram ha isto mais mas me meu \
      mim minha muito na nao no nos o onde os ou para pelo por porque qual quando que quem sabe sabes se sem \
      seu sua tambem te tem tenho um uma voce"),
    (List::Italian, "\
      a al anche c che chi ci come con cosa d da dei del della di dove e fa gli ha hai ho i il in io l la le \
      lo lui ma mi mia mio molto nel non o per perche piu poi quale quando quanto quello questa questo sai \
      sapete se sei si sono sta su sua suo tu tuo un una uno"),
    (List::Dutch, "\
      aan als ben bij dan dat de die dit door een en er had heb hebben heeft het hier hij hoe ik in is ja je \
      jouw maar me met mijn moet naar niet of om ons ook op te uit van veel voor waar waarom wanneer was wat \
      we weet wel wie wij zijn zo"),
    (List::Swedish, "\
      ar att av da dar de den det detta dig din du efter eller en ett for fran ha han har hej hon hur i inte \
      ja jag kan man med men mig min mina mycket nagot nar ni nu och om pa ska som till upp vad var vara \
      varfor vem vi vilken"),
    (List::Polish, "\
      a ale bardzo bez by byc co czy dla do go i ich ja jak jaki jakie jest jestem kiedy kto ktory ma mam \
      masz mnie moj moja moje na nie o od on ona po przez sa sie ta tego ten to tu twoja tylko u w z za ze"),
    (List::Turkish, "\
      ama bana ben beni benim bir biz bizim bu bunu cok da daha de degil diye en gibi hangi hic icin ile ki \
      kim mi misin mu nasil ne neden nerede nicin o olarak oldu ona onu sen seni senin sonra var ve yok \
      zaman"),
    (List::Russian, "\
      а был была были было в вам вас вот все вы где да для до его ее есть еще же за и из или как какая какой \
      когда кто ли меня мне мой мою моя мы на над нас наш не нет ну о он она они оно по почему при с так там \
      тебе тебя ты у це чего чи что чтобы що эта это этот я як"),
    (List::Arabic, "\
      اذا الا التي الذي الذين اللي الي ان انا انت انها او اي اين بعد بل به بها بين ثم حتي حيث ذلك شكرا علي \
      عن عند غير في فيها قبل قد كان كانت كل كم كما كيف لا لان لقد لك لم لما لماذا لن له لها لي ليس ما ماذا \
      متي مع من منه منها نحن هذا هذه هل هم هنا هناك هو هي و ولا وهو وهي يا يكون"),
    (List::Hebrew, "\
      אבל או אותה אותו אותי אז אחר אחרי איכ אינ איפה אל אלה אמ אנחנו אני אשר את אתה אתמ בו בינ בלי גמ הוא \
      הזאת הזה היא היה היו היומ הייתה המ הנ הנה זאת זה זו יש כאשר כבר כי כל כמה כמו כנ לא לאנ לה להמ לו לי \
      לכ למה לפני מאוד מה מי מנ מתי נו עד עוד על עמ פה רק של שלה שלו שלי שלכ שלנו שמ תודה"),
    (List::Hindi, "\
      अब आप आपका आपकी आपके इस उस एक और कब कर करते करना का कि किस की कुछ के कैसे को कोई कौन क्या क्यों गया जो \
      तक तुम तो था थी थे नहीं ने पर बहुत भी मुझे में मेरा मेरी मेरे मैं मैंने यह या ये रहा रही रहे लिए वह वे \
      वो सब साथ से हम ही हुआ है हैं हो"),
    (List::Korean, "\
      가 거 것 그 그것 그는 그런데 그럼 그리고 까지 나 나는 나요 나의 난 내 내가 너 너는 너의 네 네가 누가 \
      누구 는 무슨 무엇 무엇을 뭐 뭐야 뭐예요 뭘 부터 어디 어디서 어디에 어떤 어떻게 언제 얼마 에 에게 에서 \
      예요 와 왜 우리 으로 은 을 의 이 이것 이다 이야 입니다 있는 있다 있어 있어요 저 저는 제 제가 좀 지금 \
      하고 하는 한 합니다 해요 했습니다 했어 했어요 했지"),
    (List::CjkCharacters, "\
      一 不 与 个 为 么 之 也 了 于 什 从 他 以 们 会 何 你 來 個 們 做 僕 几 到 去 叫 可 吗 君 吧 呢 和 哪 \
      啊 嗎 嘛 在 地 多 她 它 对 對 少 就 幾 彼 很 得 從 怎 您 想 我 把 方 於 是 會 有 来 次 沒 没 為 的 着 \
      私 給 给 能 與 著 被 要 說 誰 請 讓 让 说 请 谁 过 还 这 這 過 還 那 都 麼"),
    (List::CjkParticles, "\
      么 也 了 什 他 们 何 你 們 吗 吧 呢 哪 啊 嗎 嘛 在 她 它 就 很 怎 您 我 是 的 私 誰 谁 还 这 這 還 那 \
      麼"),
    (List::CjkPairs, "\
      あっ あの ある あれ いた いつ いま いる えて おし かっ かな かも から きた きま くだ こと この これ \
      さい され しえ した して しま しょ すか する せん その それ たい たか たこ たの ため だけ ださ だっ \
      だれ った って てい てく ても でき でし です での では でも とが とき とは とも とを どう どこ どの \
      どん ない なか なっ など なに なり なる なん にな には のが ので のに のは のを へと へは ほど まし \
      ます ませ まで もの ょう よう より れた れる ろう んで んな 一个 一個 不是 为什 么时 什么 什時 什麼 \
      他们 他們 但是 何时 何時 你们 你們 你好 可以 告訴 告诉 哪个 哪個 哪裡 哪里 因为 因為 多少 如果 怎么 \
      怎麼 您好 我们 我們 所以 时候 是不 是什 時候 有沒 有没 沒有 没有 為什 知道 記得 謝謝 记得 谢谢 还是 \
      这个 這個 還是 那个 那個 麼時"),
];

/// All words with their lists, sorted.
pub(crate) static WORDS: LazyLock<Vec<(&str, List)>> = LazyLock::new(|| {
    let words_of = |(list, words): &(List, &'static str)| {
        let list = *list;
        words.split_ascii_whitespace().map(move |word| (word, list))
    };
    let mut words: Vec<_> = LISTS.iter().flat_map(words_of).collect();
    words.sort_unstable();
    words
});

/// The lists that have a folded word.
pub(crate) fn lists_with(word: &str) -> impl Iterator<Item = List> {
    let start = WORDS.partition_point(|(other, _)| *other < word);
    let same = WORDS.get(start..).unwrap_or_default().iter().take_while(move |(other, _)| *other == word);
    same.map(|(_, list)| *list)
}

/// Whether a folded word is in a list.
pub(crate) fn contains(list: List, word: &str) -> bool {
    lists_with(word).any(|other| other == list)
}
