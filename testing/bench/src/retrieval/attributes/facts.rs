//! Attributes for plain facts about a person.

use super::{Attribute, AttributeKind};

pub(super) const FACTS: &[Attribute] = &[
    Attribute {
        kind: AttributeKind::Fact,
        statements: &[
            "{who} adopted a {0} called {1}.",
            "{who} came home with a {0} and named it {1}.",
            "{who} picked up {1} from the shelter, a {0}.",
            "{who} now walks a {0}, {1}, around the block.",
        ],
        records: &["{who} has a {0}, {1}.", "{1}, a {0}, belongs to {who}."],
        paraphrased_questions: &[
            "What pet does {who} keep?",
            "Which animal lives with {who}?",
            "What kind of creature does {who} look after?",
        ],
        literal_questions: &[
            "What did {who} adopt?",
            "What did {who} get from the shelter, and how is it called?",
        ],
        values: &[
            "greyhound, beagle, tabby, parrot, tortoise, corgi, ferret, dachshund, canary, husky, \
             poodle, gecko, hamster, spaniel, cockatoo, rottweiler, chinchilla, whippet, dalmatian, \
             Siamese, Persian, collie, terrier, iguana, budgie, mastiff, setter, pointer, guinea \
             pig, Maine Coon",
            "Pixel, Waffles, Nimbus, Biscuit, Pepper, Mochi, Truffle, Sputnik, Olive, Ziggy, Pickle, \
             Cosmo, Noodle, Clover, Bandit, Juno, Maple, Pretzel, Rocket, Tofu, Domino, Marble, \
             Gizmo, Pumpkin, Sesame, Turbo, Velvet, Whisky, Yoda, Figaro",
        ],
    },
    Attribute {
        kind: AttributeKind::Fact,
        statements: &[
            "{who} got hired as a {0} at {1}.",
            "{who} signed with {1} as a {0}.",
            "{who} is a {0} with {1} these days.",
            "{who} spends the days as a {0} over at {1}.",
        ],
        records: &["{who}: {0} at {1}.", "{1} has {who} as a {0}."],
        paraphrased_questions: &[
            "How does {who} earn a living?",
            "What is the profession of {who}?",
            "What line of business is {who} in?",
        ],
        literal_questions: &["Who hired {who}?", "What has {who} been hired as?"],
        values: &[
            "surveyor, pharmacist, welder, paralegal, beekeeper, radiologist, stagehand, actuary, \
             bookbinder, locksmith, midwife, geologist, copywriter, bricklayer, optician, florist, \
             dispatcher, goldsmith, librarian, electrician, notary, sommelier, tailor, translator, \
             veterinarian, carpenter, dietitian, cartographer, undertaker, meteorologist, roofer, \
             archivist, chemist, plumber, puppeteer, harbour pilot, sound engineer, tram driver",
            "Halden & Sons, Norwick, Bluefern, Castor Works, Dynalith, Everbrook, Fennimore, \
             Glasswell, Hartmann Group, Ironleaf, Jupiter Yard, Kiteworks, Lumenta, Marrowby, \
             Northgate, Oakhaven, Pinnacle Row, Quarrystone, Redwater, Silverline, Tidewell, \
             Umbrecht, Vantage Nine, Westerly, Yellowtail, Zenithal, Amberfield, Brightmoor, \
             Copperdale",
        ],
    },
    Attribute {
        kind: AttributeKind::Fact,
        statements: &[
            "{who} packed everything up and settled in {0}.",
            "{who} found a flat in {0}, near the {1}.",
            "{who} relocated to {0}, next to the {1}.",
            "{who} has put down roots in {0}.",
        ],
        records: &["{who} is based in {0}.", "{0} has been home to {who} lately."],
        paraphrased_questions: &[
            "In which city does {who} live?",
            "Where should I send a letter to {who}?",
            "What is the current address of {who}?",
        ],
        literal_questions: &["Where did {who} settle?", "Where has {who} relocated?"],
        values: &[
            "Trieste, Gdansk, Porto, Leuven, Tampere, Graz, Bergen, Lyon, Utrecht, Sofia, Valletta, \
             Aarhus, Bilbao, Cork, Debrecen, Edinburgh, Freiburg, Ghent, Heraklion, Innsbruck, Jena, \
             Krakow, Ljubljana, Malmo, Nantes, Osijek, Palermo, Quimper, Riga, Split, Tallinn, \
             Uppsala, Varna, Wroclaw, Zadar, Antwerp, Brno, Coimbra, Dresden, Espoo, Ferrara, \
             Galway, Haarlem, Izmir, Kaunas, Lugano",
            "canal, old brewery, botanical garden, lighthouse, tram depot, fish hall, opera, \
             cathedral, stadium, planetarium, velodrome, aqueduct, ferry pier, castle hill",
        ],
    },
    Attribute {
        kind: AttributeKind::Fact,
        statements: &[
            "{who} gets hives from {0}.",
            "{who} ended up in hospital because of {0} in the {1}.",
            "{who} must never touch {0} again, the doctor said.",
            "{who} swells up after one bite of {0}.",
        ],
        records: &["{who} reacts badly to {0}.", "Danger for {who}: {0}."],
        paraphrased_questions: &[
            "What food is {who} allergic to?",
            "Which ingredient should I avoid when cooking for {who}?",
            "What should I leave out of a dinner with {who}?",
        ],
        literal_questions: &["What gives {who} hives?", "What must {who} never touch?"],
        values: &[
            "walnuts, shellfish, sesame, celery, mustard, lupin, strawberries, soy, peanuts, \
             buckwheat, kiwi, mango, oysters, almonds, gluten, eggs, cashews, mussels, garlic, \
             tomatoes, pineapple, hazelnuts, squid, lentils, cinnamon, aubergine, rye, pistachios",
            "soup, salad, sauce, curry, cake, stew, pesto, dressing, pie, marinade",
        ],
    },
    Attribute {
        kind: AttributeKind::Fact,
        statements: &[
            "{who} practises the {0} every {1}.",
            "{who} rented a {0} and takes lessons on {1}.",
            "{who} is learning the {0}, every {1} at least.",
            "{who} finally bought a second-hand {0}.",
        ],
        records: &["{who} is taking {0} lessons.", "The {0} is what {who} practises."],
        paraphrased_questions: &[
            "Which musical instrument does {who} play?",
            "What could {who} perform with in our band?",
            "What would {who} bring to a jam session?",
        ],
        literal_questions: &["What does {who} practise?", "What is {who} learning, and on which evenings?"],
        values: &[
            "cello, oboe, accordion, harp, trombone, mandolin, clarinet, bassoon, banjo, ukulele, \
             viola, zither, saxophone, marimba, sitar, French horn, lute, piccolo, tuba, dulcimer, \
             harmonica, fiddle, timpani, recorder, organ, bagpipes, theremin",
            "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, night, morning, lunch \
             break",
        ],
    },
    Attribute {
        kind: AttributeKind::Fact,
        statements: &[
            "{who} traded everything in for a {1} {0}.",
            "{who} pulled up in a {1} {0}.",
            "{who} signed the lease on a {1} {0}.",
            "{who} got a {0} in {1}, second hand.",
        ],
        records: &["{who} drives a {1} {0}.", "A {1} {0} is parked at the house of {who}."],
        paraphrased_questions: &[
            "What car does {who} own?",
            "Which vehicle should I look for when {who} comes to fetch me?",
            "What does {who} use to commute?",
        ],
        literal_questions: &["What did {who} sign a lease on?", "What did {who} pull up in?"],
        values: &[
            "Skoda, Volvo, Fiat, Renault, Subaru, Mazda, Peugeot, Toyota, Dacia, Opel, Honda, \
             Citroen, Saab, Lancia, Kia, Seat, Jeep, Mini, Lexus, Audi, Vespa, Triumph, Land Rover, \
             Suzuki, Polestar, Alfa Romeo, Hyundai, Nissan, Trabant",
            "silver, burgundy, teal, mustard, black, pearl, navy, copper, cream, bottle green, \
             scarlet, grey, turquoise, orange, violet, two-tone",
        ],
    },
    Attribute {
        kind: AttributeKind::Fact,
        statements: &[
            "{who} goes {0} with the {1} crowd.",
            "{who} joined the {1} people for {0}.",
            "{who} has taken up {0}.",
            "{who} is mad about {0} all of a sudden.",
        ],
        records: &["{who} is into {0}.", "{who} spends weekends {0} with the {1} group."],
        paraphrased_questions: &[
            "What sport does {who} do?",
            "How does {who} keep fit?",
            "Which exercise could I invite {who} to?",
        ],
        literal_questions: &["What has {who} taken up?", "What did {who} join people for?"],
        values: &[
            "bouldering, fencing, rowing, kayaking, squash, judo, badminton, archery, curling, \
             orienteering, handball, skating, surfing, water polo, trampolining, cricket, boxing, \
             sailing, hiking, table tennis, parkour, karate, ice hockey, paragliding, diving, \
             lacrosse, bowling, rugby, dressage, pilates",
            "office, village, Thursday, parish, campus, riverside, veterans, neighbourhood, night \
             shift, choir",
        ],
    },
    Attribute {
        kind: AttributeKind::Fact,
        statements: &[
            "{who} cannot stop rereading {0}, the {1} edition.",
            "{who} is halfway into {0} again.",
            "{who} has {0} on the nightstand, a {1} copy.",
            "{who} keeps quoting from {0}.",
        ],
        records: &["{who} swears by {0}.", "{who} knows {0} by heart."],
        paraphrased_questions: &[
            "What is the favourite book of {who}?",
            "Which novel does {who} love most?",
            "What literature could I discuss with {who}?",
        ],
        literal_questions: &["What does {who} keep quoting?", "What is {who} rereading?"],
        values: &[
            "Middlemarch, Moby-Dick, Dracula, Candide, Walden, Emma, Ulysses, Dune, Beowulf, \
             Solaris, Momo, Rebecca, Persuasion, Kim, Frankenstein, Germinal, Siddhartha, Faust, \
             Hamlet, The Leopard, Nostromo, Ivanhoe, Oblomov, Buddenbrooks, Lolita, The Trial, \
             Austerlitz, Silas Marner, Watership Down, The Odyssey",
            "leather, illustrated, dog-eared, pocket, annotated, library, signed, Dutch, first",
        ],
    },
    Attribute {
        kind: AttributeKind::Fact,
        statements: &[
            "{who} is writing a dissertation on {0}.",
            "{who} enrolled for {0} at the {1}.",
            "{who} got into the {1} for {0}.",
            "{who} has a seat in {0} at the {1} now.",
        ],
        records: &["{who} is enrolled in {0}.", "{who} has taken up {0} at the {1}."],
        paraphrased_questions: &[
            "What does {who} study?",
            "Which subject is {who} getting a degree in?",
            "What is the major of {who}?",
        ],
        literal_questions: &["What did {who} enrol for?", "What is the dissertation of {who} on?"],
        values: &[
            "botany, linguistics, astrophysics, theology, economics, philosophy, hydrology, \
             musicology, sociology, entomology, architecture, robotics, statistics, forestry, \
             archaeology, dentistry, criminology, oceanography, pedagogy, neuroscience, topology, \
             Byzantine history, glaciology, crystallography, comparative law, veterinary science",
            "polytechnic, Sorbonne, academy, conservatory, distance college, seminary, institute \
             downtown, evening school, state university, faculty across the river",
        ],
    },
    Attribute {
        kind: AttributeKind::Fact,
        statements: &[
            "{who} was brought up speaking {0}, and a bit of {1}.",
            "{who} talks to the grandparents in {0}.",
            "{who} curses in {0} when nobody listens.",
            "{who} counts in {0}.",
        ],
        records: &["{who} grew up with {0}.", "At home {who} speaks {0}."],
        paraphrased_questions: &[
            "What is the mother tongue of {who}?",
            "Which language does {who} understand best?",
            "What is {who} fluent in?",
        ],
        literal_questions: &[
            "What was {who} brought up speaking?",
            "What does {who} talk to the grandparents in?",
        ],
        values: &[
            "Basque, Estonian, Catalan, Welsh, Turkish, Amharic, Bengali, Maltese, Finnish, \
             Georgian, Tagalog, Romansh, Icelandic, Farsi, Yoruba, Frisian, Latvian, Swahili, \
             Galician, Armenian, Hungarian, Korean, Breton, Sorbian, Albanian, Tamil",
            "Russian, French, Arabic, Portuguese, Mandarin, Greek, Polish, Hindi, Dutch",
        ],
    },
];
