//! Attributes for events on a day, and for preferences.

use super::{Attribute, AttributeKind};

pub(super) const DATES_AND_PREFERENCES: &[Attribute] = &[
    Attribute {
        kind: AttributeKind::Day,
        statements: &[
            "{who} came into the world on {date}.",
            "{who} blows out the candles on {date}.",
            "{who} will get cake and candles on {date}.",
        ],
        records: &["Cake for {who} on {date}.", "{who} turns a year older on {date}."],
        paraphrased_questions: &[
            "When is the birthday of {who}?",
            "On what day was {who} born?",
            "When should I bring {who} a present?",
        ],
        literal_questions: &["When does {who} blow out candles?", "When did {who} come into the world?"],
        values: &[],
    },
    Attribute {
        kind: AttributeKind::Day,
        statements: &[
            "{who} ties the knot on {date}.",
            "{who} walks down the aisle on {date}.",
            "{who} says yes at the registry office on {date}.",
        ],
        records: &["{who} becomes a spouse on {date}.", "Registry office with {who}: {date}."],
        paraphrased_questions: &[
            "When does {who} get married?",
            "What is the wedding day of {who}?",
            "When do I need a suit for the ceremony of {who}?",
        ],
        literal_questions: &["When does {who} tie the knot?", "When is {who} at the registry office?"],
        values: &[],
    },
    Attribute {
        kind: AttributeKind::Day,
        statements: &[
            "{who} goes under the knife on {date}.",
            "{who} gets the new {0} put in on {date}.",
            "{who} checks into the ward on {date}, for the {0}.",
        ],
        records: &["{who} gets the {0} done on {date}.", "The ward expects {who} on {date}."],
        paraphrased_questions: &[
            "When is the operation of {who}?",
            "What is the date of the surgery of {who}?",
        ],
        literal_questions: &["When does {who} go under the knife?", "When is {who} expected in the ward?"],
        values: &["hip, knee, pacemaker, lens, shoulder joint, dental crown, stent, cochlea"],
    },
    Attribute {
        kind: AttributeKind::Day,
        statements: &[
            "{who} gets the keys to the new flat on {date}.",
            "{who} hands over the old apartment on {date}.",
            "{who} has the van booked for the boxes on {date}.",
        ],
        records: &["Keys for {who}: {date}.", "{who} needs hands for the boxes on {date}."],
        paraphrased_questions: &["When does {who} move house?", "On what day is the relocation of {who}?"],
        literal_questions: &["When does {who} get the keys?", "For when has {who} booked the van?"],
        values: &[],
    },
    Attribute {
        kind: AttributeKind::Day,
        statements: &[
            "{who} defends the thesis on {date}.",
            "{who} faces the {0} panel on {date}.",
            "{who} sits the {0} paper on {date}.",
        ],
        records: &["Thumbs pressed for {who} on {date}: {0}.", "{who} has the {0} panel on {date}."],
        paraphrased_questions: &["When is the exam of {who}?", "When is {who} being tested?"],
        literal_questions: &["When does {who} defend the thesis?", "When does {who} face the panel?"],
        values: &["bar, anatomy, pilot, driving, Latin, algebra, chemistry, rhetoric, harmony"],
    },
    Attribute {
        kind: AttributeKind::Day,
        statements: &[
            "{who} takes off for {0} on {date}.",
            "{who} lands in {0} on {date}.",
            "{who} boards the ferry to {0} on {date}.",
        ],
        records: &["{who} is off to {0} on {date}.", "{0} from {date} for {who}."],
        paraphrased_questions: &[
            "When does the holiday of {who} begin?",
            "When will {who} travel?",
            "When is {who} going abroad?",
        ],
        literal_questions: &["When does {who} board the ferry?", "When does {who} land?"],
        values: &["Madeira, Crete, Iceland, Sardinia, Tunis, Corsica, Malta, Lapland, Cyprus, Oman, \
             Tenerife, Bornholm, Ischia, Jordan, Gotland, Kyoto, Lisbon, Marrakesh"],
    },
    Attribute {
        kind: AttributeKind::Day,
        statements: &[
            "{who} stands on the stage of the {0} on {date}.",
            "{who} sings at the {0} on {date}.",
            "{who} opens for the {0} people on {date}.",
        ],
        records: &["{who} is on at the {0} on {date}.", "{date}: {who} at the {0}."],
        paraphrased_questions: &["When is the concert of {who}?", "When does {who} perform in public?"],
        literal_questions: &["When does {who} sing?", "When does {who} stand on the stage?"],
        values: &["town hall, Odeon, jazz cellar, market square, chapel, harbour fair, arena, abbey"],
    },
    Attribute {
        kind: AttributeKind::Preference,
        statements: &[
            "{who} would take {0} over anything else after a meal.",
            "{who} always asks for {0} once the plates are gone.",
            "{who} lit up when the waiter mentioned {0}.",
        ],
        records: &["{who} wants {0} after meals.", "{who} always orders {0}."],
        paraphrased_questions: &[
            "How does {who} like to end a dinner?",
            "What drink does {who} prefer?",
            "What beverage should I pour {who}?",
        ],
        literal_questions: &[
            "What does {who} always ask for after a meal?",
            "What does {who} take over anything else?",
        ],
        values: &["espresso, peppermint infusion, cognac, oat cappuccino, grappa, rooibos, cocoa, \
             kombucha, amaro, matcha, sherry, ginger ale, buttermilk, chai, cider, absinthe, \
             elderflower cordial, limoncello, ristretto, sake"],
    },
    Attribute {
        kind: AttributeKind::Preference,
        statements: &[
            "{who} hates surprises and would rather be told by {0}.",
            "{who} only ever answers a {0}.",
            "{who} asked that everything goes by {0}.",
        ],
        records: &["For {who} always use {0}.", "{who} answers by {0} only."],
        paraphrased_questions: &[
            "How does {who} prefer to be contacted?",
            "What is the best way to reach {who}?",
        ],
        literal_questions: &["What does {who} answer?", "By what did {who} ask that everything goes?"],
        values: &["text message, postcard, voicemail, fax, landline, telegram, handwritten note, pager, \
             email, courier, voice memo, video call"],
    },
    Attribute {
        kind: AttributeKind::Preference,
        statements: &[
            "{who} could listen to {0} all night.",
            "{who} plays {0} whenever the house is empty.",
            "{who} has nothing but {0} on the headphones.",
        ],
        records: &["{who} listens to {0}.", "{0} for {who}, on any headphones."],
        paraphrased_questions: &[
            "What music does {who} enjoy?",
            "Which records should I give {who}?",
            "What concert would please {who}?",
        ],
        literal_questions: &["What could {who} listen to?", "What is on the headphones of {who}?"],
        values: &["bebop, fado, techno, madrigals, bluegrass, ska, reggae, klezmer, grunge, opera, \
             flamenco, bossa nova, krautrock, gospel, dub, afrobeat, chanson, polka, shoegaze, \
             Gregorian chant, trip hop, salsa"],
    },
    Attribute {
        kind: AttributeKind::Preference,
        statements: &[
            "{who} wears nothing but {0}.",
            "{who} painted every room {0}.",
            "{who} went for {0} again, curtains and all.",
        ],
        records: &["{who} goes for {0}.", "Everything {0} for {who}."],
        paraphrased_questions: &[
            "What is the favourite colour of {who}?",
            "Which shade should the gift for {who} have?",
        ],
        literal_questions: &["What does {who} wear?", "How did {who} paint the rooms?"],
        values: &["ochre, lilac, indigo, vermilion, sage, ivory, crimson, taupe, emerald, fuchsia, cobalt, \
             terracotta, amber, magenta, olive, charcoal, apricot, aquamarine, maroon, saffron"],
    },
    Attribute {
        kind: AttributeKind::Preference,
        statements: &[
            "{who} sends back anything that is not {0}.",
            "{who} cannot say no to {0}.",
            "{who} piled the plate with {0} twice.",
        ],
        records: &["{who} never says no to {0}.", "A plate of {0} for {who}."],
        paraphrased_questions: &[
            "What is the favourite dish of {who}?",
            "What does {who} like to eat?",
            "Which meal would delight {who}?",
        ],
        literal_questions: &["What can {who} never say no to?", "With what did {who} pile the plate?"],
        values: &["ramen, paella, goulash, pierogi, falafel, lasagne, moussaka, bibimbap, tagine, risotto, \
             gnocchi, ceviche, dal, schnitzel, ratatouille, borscht, dumplings, biryani, fondue, \
             jollof rice, tortilla, gumbo"],
    },
    Attribute {
        kind: AttributeKind::PlacePreference,
        statements: &[
            "At {who} I always go for {0}.",
            "If it is {who} again, put me {0}.",
            "I was put {0} at {who} and want nothing else from now on.",
        ],
        records: &["At {who}: always {0}.", "The user goes for {0} at {who}."],
        paraphrased_questions: &[
            "Where do I like to sit in {who}?",
            "Which table should be reserved for us in {who}?",
        ],
        literal_questions: &["Where do I always go at {who}?", "Where was I put at {who}?"],
        values: &["the corner by the window, the terrace, the bar stools, the booth at the back, beside \
             the fireplace, upstairs near the stairs, under the chestnut tree, close to the kitchen, \
             the veranda, the conservatory, facing the door, next to the aquarium"],
    },
    Attribute {
        kind: AttributeKind::PlacePreference,
        statements: &[
            "When {who} comes up, I will only have {0}.",
            "For me it is {0} whenever we end up at {who}.",
            "I went back to {who} just because of the {0}.",
        ],
        records: &["{who}: {0} and nothing else.", "The user comes to {who} for the {0}."],
        paraphrased_questions: &[
            "What should be ordered for me in {who}?",
            "Which dish do I prefer in {who}?",
        ],
        literal_questions: &[
            "What do I only have when {who} comes up?",
            "Because of what did I go back to {who}?",
        ],
        values: &["venison stew, lemon sole, mushroom tart, onion soup, duck confit, beetroot carpaccio, \
             saffron rice, crab cakes, plum dumplings, grilled halloumi, tiramisu, rabbit pie, pear \
             strudel, squid ink pasta, chestnut purée, rhubarb crumble"],
    },
];
